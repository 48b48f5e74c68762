"""Many small networks of one architecture that compute and train at once."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from transformers import PreTrainedModel

from ..modules.evaluation import in_evaluation

__all__ = ["StackedNets"]


class StackedNets:
    """Networks of one architecture as one batch of weights: a call computes all, an update is Adam's for each alone.

    theta_i <- theta_i - rate_i m_i / (sqrt(v_i) + eps), where m_i and v_i are Adam's averages of the gradient of net
    i's own mean square error (Kingma, Ba 2015, arXiv 1412.6980). A net that diverges spoils itself only, and a rate of
    0 leaves a finite net as it is. Nets with a `PreTrainedModel` in them compute one after another, by their own
    functions of autograd.

    Args:
        nets: from inputs (rows, ...) to outputs, of one architecture; they are left untouched.
        betas: of Adam.
        eps: of Adam, added to the root.
        clip: largest norm of a net's gradient; None leaves gradients as they are.

    Attributes:
        values: name of a parameter -> its values (nets, ...).

    Raises:
        ValueError: there are no nets, or their parameters differ in name or shape.
    """

    def __init__(
        self,
        nets: Sequence[nn.Module],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = None,
    ) -> None:
        shapes = [{name: value.shape for name, value in net.named_parameters()} for net in nets]
        if not shapes or any(other != shapes[0] for other in shapes):
            raise ValueError(
                f"there are {len(shapes)} nets with parameters of {len({str(each) for each in shapes})} kinds of names"
                " and shapes; give at least one net, and nets of one architecture only."
            )
        parameters, self._buffers = stack_module_state(nn.ModuleList(nets))
        self._nets = copy.deepcopy(list(nets))
        self._at_once = not any(isinstance(module, PreTrainedModel) for module in nets[0].modules())
        self._skeleton = copy.deepcopy(nets[0]).to("meta")
        self.values = {name: value.detach().clone() for name, value in parameters.items()}
        self._moments = {
            name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in parameters.items()
        }
        self._betas, self._eps, self._clip = betas, eps, clip
        self._steps = 0

    def __len__(self) -> int:
        return len(self._nets)

    @torch.no_grad()
    def outputs(self, inputs: Tensor, shared: bool = True) -> Tensor:
        """Return (nets, rows, ...), what each net makes of inputs, in evaluation mode.

        Args:
            inputs: (rows, ...), the same for all nets, or (nets, rows, ...) if not `shared`.
            shared: whether the nets share their inputs.
        """
        with ExitStack() as modes:
            for net in (self._skeleton, *self._nets):
                modes.enter_context(in_evaluation(net))
            return self._predict(self.values, inputs, shared)

    def update(self, inputs: Tensor, targets: Tensor, rates: Tensor) -> Tensor:
        """Update each net once, on rows of its own.

        Args:
            inputs: (nets, rows, ...).
            targets: (nets, rows, ...), in the shape of the outputs.
            rates: (nets,), learning rates.

        Returns:
            (nets,), mean square errors before the update.

        Raises:
            ValueError: outputs and targets have different shapes.
        """
        leaves = {name: value.requires_grad_() for name, value in self.values.items()}
        outputs = self._predict(leaves, inputs)
        if outputs.shape != targets.shape:
            raise ValueError(
                f"outputs have the shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}; give targets in"
                " the shape of the outputs."
            )
        losses = (outputs - targets).square().flatten(1).mean(dim=1)
        # A parameter that the outputs do not depend on, such as an unused embedding, has no gradient.
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        self.values = {name: value.detach() for name, value in leaves.items()}
        self._adam(dict(zip(self.values, grads, strict=True)), rates)
        return losses.detach()

    def unstacked(self) -> list[nn.Module]:
        """Return copies of the nets with the present values and buffers."""
        nets = copy.deepcopy(self._nets)
        for i, net in enumerate(nets):
            for name, parameter in net.named_parameters():
                parameter.data.copy_(self.values[name][i])
            for name, buffer in net.named_buffers():
                buffer.copy_(self._buffers[name][i])
        return nets

    def _predict(self, values: dict[str, Tensor], inputs: Tensor, shared: bool = False) -> Tensor:
        if not self._at_once:
            return torch.stack(
                [self._predict_alone(i, values, inputs if shared else inputs[i]) for i in range(len(self))]
            )

        def predict(values: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(self._skeleton, (values, buffers), (inputs,))

        return vmap(predict, in_dims=(0, 0, None if shared else 0))(values, self._buffers, inputs)

    def _predict_alone(self, place: int, values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        own = {name: value[place] for name, value in (values | self._buffers).items()}
        return functional_call(self._nets[place], own, (inputs,))

    @torch.no_grad()
    def _adam(self, grads: dict[str, Tensor], rates: Tensor) -> None:
        self._steps += 1
        first_decay, second_decay = self._betas
        shrink = None
        if self._clip is not None:
            squares = torch.stack([grad.flatten(1).square().sum(dim=1) for grad in grads.values()]).sum(dim=0)
            shrink = (self._clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
        for name, grad in grads.items():
            shape = (-1, *[1] * (grad.ndim - 1))
            first, second = self._moments[name]
            if shrink is not None:
                grad = grad * shrink.view(shape)
            first.lerp_(grad, 1 - first_decay)
            second.lerp_(grad.square(), 1 - second_decay)
            scale = (second / (1 - second_decay**self._steps)).sqrt_().add_(self._eps)
            self.values[name].sub_(rates.view(shape) * (first / (1 - first_decay**self._steps)) / scale)
