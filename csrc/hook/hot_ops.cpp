#include <ATen/Operators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "hook/op_call.h"
#include "hook/op_hook.h"

// Boxing an op's arguments costs 70 ns to 6 us (most with SymInt[] or Tensor[] arguments); a typed kernel adds nothing
// to the cost of the gate. The kernels are generated from torch's operator types: add an op by its name in hot_ops.inc.

namespace torchshare {
namespace {

template <class Op, class Schema = typename Op::schema>
struct TypedKernel;

template <class Op, class Result, class... Arguments>
struct TypedKernel<Op, Result(Arguments...)> {
  static constexpr std::uint64_t kName = hash_name(Op::overload_name, hash_name(Op::name));

  static Result hot(c10::DispatchKeySet keys, Arguments... arguments) {
    return run_op(current_context, TypedCall(kName, Op::name, arguments...),
                  [&]() -> Result { return Op::redispatch(after_hook(keys), std::forward<Arguments>(arguments)...); });
  }

  static Result compound(c10::DispatchKeySet keys, Arguments... arguments) {
    return run_op(current_context, TypedCall(kName, Op::name, arguments...), [&]() -> Result {
      const c10::impl::ExcludeDispatchKeyGuard inside(kHookKey);
      return Op::redispatch(after_hook(keys), std::forward<Arguments>(arguments)...);
    });
  }
};

template <class Op>
std::string full_name() {
  return std::string(Op::name) + (*Op::overload_name == 0 ? "" : ".") + Op::overload_name;
}

}  // namespace

void install_hot_ops(torch::Library& library) {
#define HOT(op) library.impl(full_name<at::_ops::op>().c_str(), TORCH_FN(TypedKernel<at::_ops::op>::hot));
#define COMPOUND(op) library.impl(full_name<at::_ops::op>().c_str(), TORCH_FN(TypedKernel<at::_ops::op>::compound));
#include "hook/hot_ops.inc"
#undef HOT
#undef COMPOUND
}

}  // namespace torchshare
