"""What torch.compile is asked for; tests/trainer/test_engine.py trains in such graphs."""

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from trainer.graphs import put_into_graphs


class Model(nn.Module):
    """Of which torch.compile takes notice, as it does not of torch's own."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * rows


def test_each_shape_has_a_graph_of_its_own_however_many_there_are(monkeypatch):
    """At a limit of ways torch would say nothing and go on without."""
    counter, compile_module = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, dynamic, options: compile_module(module, backend=counter, dynamic=dynamic)
    )
    model = Model()
    with torch._dynamo.config.patch(recompile_limit=4, accumulated_recompile_limit=6):
        put_into_graphs(model)
        for rows in range(2, 12):
            model(torch.ones(rows, 4))
    assert counter.frame_count == 10
