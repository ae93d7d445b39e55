/* libcuda.so.1 of the stand-in: what torch and triton take from CUDA's driver. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdlib.h>

extern void stand_in_launched(CUstream stream);
static char context;

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *number)
{
    *number = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute what, CUdevice device)
{
    switch (what) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *found = 9; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *found = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *found = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *found = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *found = 227 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *found = 228 << 10; break;
    default: *found = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active)
{
    *flags = 0, *is_active = 1;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *found)
{
    *found = (CUcontext)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) { return cuCtxGetCurrent(found); }

CUresult cuCtxGetDevice(CUdevice *device) { return cuDeviceGet(device, 0); }

CUresult cuCtxGetLimit(size_t *found, CUlimit which)
{
    *found = 1 << 20;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = "the stand-in for CUDA's driver takes no such call";
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)&context;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    *f = (CUfunction)&context;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *found, CUfunction_attribute what, CUfunction f)
{
    *found = what == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}

static CUresult launch(unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, CUstream stream)
{
    stand_in_launched(stream);
    int fits = x && y && z && y <= 65535 && z <= 65535 && threads && threads <= 1024 && shared <= 227 << 10;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(
    CUfunction f, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
    CUstream stream, void **arguments, void **more)
{
    return launch(x, y, z, block_x * block_y * block_z, shared, stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction f, void **arguments, void **more)
{
    unsigned threads = how->blockDimX * how->blockDimY * how->blockDimZ;
    return launch(how->gridDimX, how->gridDimY, how->gridDimZ, threads, how->sharedMemBytes, how->hStream);
}

CUresult cuOccupancyMaxActiveClusters(int *number, CUfunction f, const CUlaunchConfig *how)
{
    *number = 132;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *found, CUpointer_attribute what, CUdeviceptr at)
{
    if (what != CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        return CUDA_ERROR_INVALID_VALUE;
    *(CUdeviceptr *)found = at;
    return CUDA_SUCCESS;
}
