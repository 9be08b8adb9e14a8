#include "numerics/overrides.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/copy_native.h>

#include <tuple>
#include <vector>

#include "numerics/boxed.h"
#include "numerics/tensors.h"

namespace emulator {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The kernel that an op would have, were it not overridden. One for each call site.
template <class... Arguments>
Tensor call_boxed(BoxedKernel& kernel, Arguments&&... arguments) {
  torch::jit::Stack stack{c10::IValue(std::forward<Arguments>(arguments))...};
  kernel.launch(stack);
  return stack.back().toTensor();
}

BoxedKernel& boxed(const char* name) {
  return *new BoxedKernel(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

// Copies: torch's own between host and device, and where it would call cudaMemcpyAsync.

bool is_memcpy(const Tensor& self, const Tensor& source) {
  return self.scalar_type() == source.scalar_type() && self.sizes() == source.sizes() &&
         self.strides() == source.strides() && self.is_non_overlapping_and_dense() &&
         self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  static BoxedKernel& kernel = boxed("aten::copy_");
  if (!is_on_device(self) || !is_on_device(source) || is_memcpy(self, source)) {
    return at::native::copy_(self, source, non_blocking);
  }
  call_boxed(kernel, self, source, non_blocking);
  return self;
}

void foreach_copy_(at::TensorList self, at::TensorList sources, bool non_blocking) {
  for (size_t i = 0; i < self.size(); ++i) {
    self[i].copy_(sources[i], non_blocking);
  }
}

// Softmax of half precision with a float result: CUDA's kernels convert on the way, the CPU's refuse.

Tensor softmax(const Tensor& input, int64_t dim, bool half_to_float) {
  static BoxedKernel& kernel = boxed("aten::_softmax");
  return call_boxed(kernel, half_to_float ? input.to(at::kFloat) : input, dim, false);
}

Tensor log_softmax(const Tensor& input, int64_t dim, bool half_to_float) {
  static BoxedKernel& kernel = boxed("aten::_log_softmax");
  return call_boxed(kernel, half_to_float ? input.to(at::kFloat) : input, dim, false);
}

Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  static BoxedKernel& kernel = boxed("aten::_softmax_backward_data");
  return call_boxed(kernel, grad, output, dim, grad.scalar_type()).to(type);
}

Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  static BoxedKernel& kernel = boxed("aten::_log_softmax_backward_data");
  return call_boxed(kernel, grad, output, dim, grad.scalar_type()).to(type);
}

// The CPU's dropout takes no generator.

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// Cells of recurrent networks, as at::native computes them from parts where there is no fused kernel.

Tensor add_defined(Tensor sum, const OptionalTensor& bias) {
  return bias && bias->defined() ? sum + *bias : sum;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const Tensor gates = add_defined(add_defined(input_gates + hidden_gates, input_bias), hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const Tensor tanh = cy.tanh();
  const Tensor dh = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  const Tensor dc = add_defined(dh * o * (1 - tanh * tanh), grad_cy);
  const Tensor gates =
      at::cat({dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g * g), dh * tanh * o * (1 - o)}, 1);
  return {gates, dc * f, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto in = add_defined(input_gates, input_bias).chunk(3, 1);
  const auto hidden = add_defined(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = (in[0] + hidden[0]).sigmoid(), z = (in[1] + hidden[1]).sigmoid();
  const Tensor n = (in[2] + r * hidden[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hidden_n = parts[4];
  const Tensor dz = grad * (hx - n) * z * (1 - z);
  const Tensor dn = grad * (1 - z) * (1 - n * n);
  const Tensor dr = dn * hidden_n * r * (1 - r);
  const Tensor input_gates = at::cat({dr, dz, dn}, 1), hidden_gates = at::cat({dr, dz, dn * r}, 1);
  return {input_gates, hidden_gates, grad * z, has_bias ? input_gates.sum(0) : Tensor(),
          has_bias ? hidden_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef normalized,
                                             const Tensor& rstd, const OptionalTensor& weight,
                                             std::array<bool, 2> mask) {
  std::vector<int64_t> dims, outer;
  const auto first = input.dim() - static_cast<int64_t>(normalized.size());
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < first ? outer : dims).push_back(dim);
  }
  const Tensor scaled = input * rstd;
  const Tensor dy = weight && weight->defined() ? grad * *weight : grad;
  const Tensor mean = (dy * scaled).mean(dims, /*keepdim=*/true);
  const Tensor dweight = grad * scaled;
  return {mask[0] ? ((dy - scaled * mean) * rstd).to(input.scalar_type()) : Tensor(),
          mask[1] ? (outer.empty() ? dweight : dweight.sum(outer)).to(weight->scalar_type()) : Tensor()};
}

// Products of half precision with a float result.

Tensor mm_to(const Tensor& a, const Tensor& b, at::ScalarType type) {
  return at::mm(a.to(type), b.to(type));
}

Tensor bmm_to(const Tensor& a, const Tensor& b, at::ScalarType type) {
  return at::bmm(a.to(type), b.to(type));
}

Tensor addmm_to(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType type, const at::Scalar& beta,
                const at::Scalar& alpha) {
  return at::addmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}

Tensor baddbmm_to(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType type, const at::Scalar& beta,
                  const at::Scalar& alpha) {
  return at::baddbmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}

/// Attention from its parts: the fused kernels are CUDA's alone. Asked through a stub, and through an op.
int64_t choose_math(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, bool,
                    std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace

void install_overrides(torch::Library& library) {
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_foreach_copy_", TORCH_FN(foreach_copy_));
  library.impl("_softmax", TORCH_FN(softmax));
  library.impl("_log_softmax", TORCH_FN(log_softmax));
  library.impl("_softmax_backward_data", TORCH_FN(softmax_backward));
  library.impl("_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  library.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
  library.impl("mm.dtype", TORCH_FN(mm_to));
  library.impl("bmm.dtype", TORCH_FN(bmm_to));
  library.impl("addmm.dtype", TORCH_FN(addmm_to));
  library.impl("baddbmm.dtype", TORCH_FN(baddbmm_to));
  library.impl("_fused_sdp_choice", TORCH_FN(choose_math));
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_math);
}

}  // namespace emulator
