// Typed kernels for the ops of ordinary training steps. Boxing an op's arguments costs 70 ns to 6 us (the most where they
// hold SymInt[] or Tensor[]); a kernel of the op's own type costs what the gate itself does. The kernels are generated
// from torch's own operator types, so an op is added by its name in a list below.
#include <ATen/core/Tensor.h>  // before the operator headers: they declare too little

#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_neg_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/binary_cross_entropy_with_logits_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mkldnn_convolution_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "gate/op_hook.h"

// One kernel each.
#define TORCHSHARE_HOT_OPS(X) \
  X(add_Tensor) X(add__Tensor) X(sub_Tensor) X(mul_Tensor) X(mul__Tensor) X(mul__Scalar) X(div_Tensor) \
  X(div__Scalar) X(neg) X(exp) X(log) X(sqrt) X(rsqrt) X(reciprocal) X(pow_Tensor_Scalar) X(abs) X(clamp_min) \
  X(where_self) X(eq_Tensor) X(sum_dim_IntList) X(mean) X(mean_dim) X(argmax) X(mm) X(addmm) X(bmm) X(baddbmm) \
  X(relu) X(relu_) X(threshold_backward) X(gelu) X(gelu_backward) X(silu) X(silu_backward) X(sigmoid) \
  X(sigmoid_backward) X(tanh) X(tanh_backward) X(_softmax) X(_softmax_backward_data) X(_log_softmax) \
  X(_log_softmax_backward_data) X(nll_loss_forward) X(nll_loss_backward) X(mse_loss) X(mse_loss_backward) \
  X(binary_cross_entropy_with_logits) X(max_pool2d_with_indices) X(max_pool2d_with_indices_backward) X(avg_pool2d) \
  X(avg_pool2d_backward) X(_adaptive_avg_pool2d) X(_adaptive_avg_pool2d_backward) X(native_layer_norm) \
  X(native_layer_norm_backward) X(embedding) X(embedding_dense_backward) X(empty_memory_format) X(empty_strided) \
  X(empty_like) X(zeros) X(zeros_like) X(ones_like) X(fill__Scalar) X(fill__Tensor) X(zero_) X(copy_) X(clone) \
  X(_to_copy) X(cat) X(stack) X(addcmul_) X(addcdiv_) X(lerp__Scalar) X(_local_scalar_dense)

// Ops whose kernels call other ops. None of them draws random numbers, so what is inside need not come to the hook.
#define TORCHSHARE_COMPOUND_OPS(X) \
  X(convolution) X(convolution_backward) X(mkldnn_convolution) X(native_batch_norm) X(native_batch_norm_backward) \
  X(mkldnn_rnn_layer) X(mkldnn_rnn_layer_backward) X(_foreach_add__Scalar) X(_foreach_add__List) \
  X(_foreach_mul__Scalar) X(_foreach_addcmul__Scalar) X(_foreach_addcdiv__ScalarList) X(_foreach_addcdiv__Scalar) \
  X(_foreach_lerp__Scalar) X(_foreach_sqrt) X(_foreach_div__ScalarList) X(_foreach_div__Scalar) X(_foreach_neg) \
  X(_foreach_zero_) X(_foreach_norm_Scalar)

namespace torchshare {
namespace {

template <class Op, class Schema = typename Op::schema>
struct Hot;

template <class Op, class Result, class... Arguments>
struct Hot<Op, Result(Arguments...)> {
  static Result simple(c10::DispatchKeySet keys, Arguments... arguments) {
    const Pass pass(current_context);
    return Op::redispatch(after_hook(keys), std::forward<Arguments>(arguments)...);
  }

  static Result compound(c10::DispatchKeySet keys, Arguments... arguments) {
    const Pass pass(current_context);
    const c10::impl::ExcludeDispatchKeyGuard inside(kHookKey);
    return Op::redispatch(after_hook(keys), std::forward<Arguments>(arguments)...);
  }
};

template <class Op>
std::string full_name() {
  return std::string(Op::name) + (*Op::overload_name == 0 ? "" : ".") + Op::overload_name;
}

}  // namespace

void install_hot_ops() {
  static torch::Library library(torch::Library::IMPL, "aten", kHookKey, __FILE__, __LINE__);
#define TORCHSHARE_SIMPLE(op) library.impl(full_name<at::_ops::op>().c_str(), TORCH_FN(Hot<at::_ops::op>::simple));
#define TORCHSHARE_COMPOUND(op) library.impl(full_name<at::_ops::op>().c_str(), TORCH_FN(Hot<at::_ops::op>::compound));
  TORCHSHARE_HOT_OPS(TORCHSHARE_SIMPLE)
  TORCHSHARE_COMPOUND_OPS(TORCHSHARE_COMPOUND)
}

}  // namespace torchshare
