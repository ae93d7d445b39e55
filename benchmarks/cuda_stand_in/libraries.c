/* cuBLAS, NCCL and CUPTI of the stand-in: what gives something back beside success. NCCL has one rank. */
#include <stdlib.h>
#include <string.h>

extern void stand_in_launched(void *stream);

static int new(void **handle)
{
    *handle = calloc(1, 4096); /* more than any of them */
    return 0;
}

static int product(void)
{
    stand_in_launched((void *)1); /* OF_A_LIBRARY */
    return 0;
}

int cublasCreate_v2(void **handle) { return new(handle); }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return new(made); }
int cublasLtMatmulPreferenceCreate(void **made) { return new(made); }
int cublasLtMatrixLayoutCreate(void **made, int type, unsigned long rows, unsigned long columns, long leading)
{
    return new(made);
}

static int release(void *made)
{
    free(made);
    return 0;
}

int cublasLtMatmulDescDestroy(void *made) { return release(made); }
int cublasLtMatmulPreferenceDestroy(void *made) { return release(made); }
int cublasLtMatrixLayoutDestroy(void *made) { return release(made); }

int cublasLtMatmulAlgoGetHeuristic(
    void *handle, void *description, void *a, void *b, void *c, void *d, void *preference, int wanted, void *results,
    int *found)
{
    memset(results, 0, 96); /* one algorithm */
    *found = 1;
    return 0;
}

static int none(int *mode)
{
    *mode = 0;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode) { return none(mode); }
int cublasGetPointerMode_v2(void *handle, int *mode) { return none(mode); }

int cublasGemmEx(void) { return product(); }
int cublasGemmStridedBatchedEx(void) { return product(); }
int cublasLtMatmul(void) { return product(); }
int cublasSgemm_v2(void) { return product(); }
int cublasSgemmStridedBatched(void) { return product(); }

typedef struct {
    char bytes[128];
} Id;

int ncclGetVersion(int *version)
{
    *version = 22800;
    return 0;
}

const char *ncclGetErrorString(int error) { return "the stand-in for NCCL"; }
const char *ncclGetLastError(void *communicator) { return ""; }
int ncclCommInitRankConfig(void **communicator, int ranks, Id id, int rank, void *how) { return new(communicator); }
int ncclCommInitRank(void **communicator, int ranks, Id id, int rank) { return new(communicator); }
int ncclCommSplit(void *communicator, int color, int key, void **part, void *how) { return new(part); }

int ncclCommGetAsyncError(void *communicator, int *error) { return none(error); }
int ncclCommUserRank(void *communicator, int *rank) { return none(rank); }

int ncclCommCount(void *communicator, int *ranks)
{
    *ranks = 1;
    return 0;
}

int ncclAllReduce(void) { return product(); }
int ncclAllGather(void) { return product(); }
int ncclReduceScatter(void) { return product(); }
int ncclBroadcast(void) { return product(); }
int ncclReduce(void) { return product(); }

int cuptiGetResultString(int result, const char **text)
{
    *text = "the stand-in for CUPTI";
    return 0;
}
