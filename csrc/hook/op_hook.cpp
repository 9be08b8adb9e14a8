#include "hook/op_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/generator_swap.h"
#include "hook/op_call.h"

namespace torchshare {

thread_local constinit OpContext* current_context = nullptr;

namespace {

/// A composite op only calls other ops, which are hooked themselves.
bool is_composite(const c10::OperatorHandle& op) {
  static const c10::DispatchKeySet kBackends({c10::DispatchKey::CPU, c10::DispatchKey::CUDA});
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForAnyDispatchKey(kBackends);
}

void gate_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_composite(op)) {  // an extension's; torch's own fall through
    op.redispatchBoxed(after_hook(keys), stack);
    return;
  }
  run_op(current_context, BoxedCall(op, *stack), [&] { op.redispatchBoxed(after_hook(keys), stack); });
}

/// For ops that wait for other ranks. They do not count as ops: a job inside an op keeps lower jobs out.
void wait_for_ranks(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const WaitForRanks here;
  op.redispatchBoxed(after_hook(keys), stack);
}

// Note [Random state]
// Each job has a generator of its own. Ops with a generator argument get it here, at any depth: an op without that
// argument (native_dropout, randn) calls one that has it (bernoulli_, normal_) from inside its kernel.
// A test runs every op of torch that is tagged nondeterministic_seeded and checks that the default generator did not
// move. Factories whose device is an argument carry no backend key yet; the op that fills their result does. On CUDA,
// kernels of ops without the argument (native_dropout, attention) take the default generator without asking the
// dispatcher. There the job's state is swapped into the default generator while the op is launched:
// `graphsafe_set_state` moves a pointer, under a lock that all jobs share. An op inside such an op finds the state
// swapped already.
class RandomOp final : public c10::OperatorKernel {
 public:
  explicit RandomOp(std::vector<std::size_t> generator_arguments) : generators_(std::move(generator_arguments)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    OpContext* const context = current_context;
    run_op(context, BoxedCall(op, *stack), [&] {
      std::optional<GeneratorSwap> swap;
      if (context != nullptr && keys.has_backend(c10::BackendComponent::CPUBit)) {
        give_generator(op, *stack, context->generator());
      } else if (context != nullptr && context->device_generator().defined() && !GeneratorSwap::is_swapped() &&
                 !keys.has(c10::DispatchKey::Python)) {  // a mode runs Python, which must not hold that lock
        swap.emplace(context->device_generator());
      }
      op.redispatchBoxed(after_hook(keys), stack);
    });
  }

 private:
  void give_generator(const c10::OperatorHandle& op, torch::jit::Stack& stack, const at::Generator& generator) const {
    const std::size_t first = stack.size() - op.schema().arguments().size();
    for (const std::size_t argument : generators_) {
      c10::IValue& given = stack[first + argument];
      if (given.isNone() || given.toGenerator() == at::detail::getDefaultCPUGenerator()) {
        given = generator;
      }
    }
  }

  std::vector<std::size_t> generators_;  // positions in the schema
};

std::vector<std::size_t> generator_arguments(const c10::FunctionSchema& schema) {
  static const auto kGenerator = c10::OptionalType::create(c10::GeneratorType::get());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].type()->isSubtypeOf(*kGenerator)) {
      found.push_back(i);
    }
  }
  return found;
}

/// A view returns an alias of an argument and writes nothing: there is no work to gate.
bool is_view(const c10::FunctionSchema& schema) {
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  const auto aliases = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  return !schema.returns().empty() && std::all_of(schema.returns().begin(), schema.returns().end(), aliases) &&
         std::none_of(schema.arguments().begin(), schema.arguments().end(), writes);
}

/// Registers a kernel for each op of torch, chosen by its schema. Ops of extensions take the boxed fallback.
void install_by_schema(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.getNamespace() != "aten") {
      continue;
    }
    const std::string full_name = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (is_view(op->schema()) || is_composite(*op)) {
      library.impl(full_name.c_str(), torch::CppFunction::makeFallthrough());
    } else if (auto generators = generator_arguments(op->schema());
               !generators.empty() || op->hasTag(at::Tag::nondeterministic_seeded)) {
      library.impl(full_name.c_str(),
                   torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RandomOp>(std::move(generators))));
    }
  }
}

/// The kernels of the hook for the ops of `name`. Never destroyed: deregistering a fallback at exit makes torch visit
/// all ops.
torch::Library& new_library(const char* name) {
  static auto& all = *new std::deque<torch::Library>;
  return all.emplace_back(torch::Library::IMPL, name, kHookKey, __FILE__, __LINE__);
}

void set_context(OpContext* context) {
  current_context = context;
  c10::impl::tls_set_dispatch_key_included(kHookKey, context != nullptr);
}

/// A forked child (a DataLoader worker) belongs to no job: its hook does nothing and its random state is its own.
void leave_job_after_fork() {
  set_context(nullptr);
}

bool register_everything() {
  new_library("_").fallback(torch::CppFunction::makeFromBoxedFunction<&gate_op>());
  torch::Library& ops = new_library("aten");
  install_hot_ops(ops);
  install_by_schema(ops);
  const auto wait = [] { return torch::CppFunction::makeFromBoxedFunction<&wait_for_ranks>(); };
  new_library("_c10d_functional").impl("wait_tensor", wait());
  new_library("c10d").impl("monitored_barrier_", wait());
  pthread_atfork(nullptr, nullptr, &leave_job_after_fork);
  return true;
}

}  // namespace

void install_op_hook() {
  static const bool installed = register_everything();
  (void)installed;
}

ContextScope::ContextScope(OpContext& context) : former_(current_context) {
  TORCH_INTERNAL_ASSERT(former_ == nullptr || former_->slot().job == context.slot().job, "one job per thread");
  set_context(&context);
}

ContextScope::~ContextScope() {
  set_context(former_);
}

ContextPause::ContextPause() : context_(current_context) {
  set_context(nullptr);
}

ContextPause::~ContextPause() {
  set_context(context_);
}

}  // namespace torchshare
