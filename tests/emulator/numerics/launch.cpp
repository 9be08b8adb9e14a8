#include "numerics/launch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>

#include "numerics/one_thread.h"
#include "numerics/random.h"
#include "numerics/tensors.h"

namespace emulator {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

Launch::Launch(const Operator& op, const c10::IValue* arguments) : op_(op) {
  const size_t count = op.arguments.size();
  arguments_.reserve(count);
  accesses_.reserve(count + op.results.size());
  for (size_t i = 0; i < count; ++i) {
    const Argument& argument = op.arguments[i];
    const bool written = argument.written && (argument.written_if < 0 || arguments[argument.written_if].toBool());
    if (static_cast<int>(i) == op.generator) {
      random_ = reserve_random(arguments[i]);
      arguments_.emplace_back();
      continue;
    }
    const auto take = [&](const at::Tensor& tensor) {
      if (is_on_device(tensor) && tensor.numel() != 0) {
        accesses_.push_back(access_of(tensor, written));
      }
      return kernel_argument(tensor, written);
    };
    if (!argument.out) {
      arguments_.push_back(map_tensors(arguments[i], take));
      continue;
    }
    outs_.resize(count);
    arguments_.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
      outs_[i].push_back(take(tensor));
      return at::Tensor(at::detail::empty_cpu({0}, tensor.scalar_type()));
    }));
  }
  if (random_ && random_->captured_) {
    accesses_.push_back({random_->seed_.ptr, sizeof(int64_t), false});
    accesses_.push_back({random_->offset_.ptr, sizeof(int64_t), false});
  }
}

void Launch::store_result(size_t position, const std::vector<at::Tensor>& into) {
  results_.resize(op_.results.size());
  for (const at::Tensor& tensor : into) {
    results_[position].push_back(kernel_argument(tensor, true));
    if (tensor.defined() && tensor.numel() != 0) {
      accesses_.push_back(access_of(tensor, true));
    }
  }
}

void Launch::answer(std::shared_ptr<Answer> answer) {
  answer_ = std::move(answer);
  outs_.clear();
}

void Launch::submit(std::unique_ptr<Launch> launch) {
  const auto run = [](void* self) { static_cast<Launch*>(self)->run(); };
  const auto destroy = [](void* self) { delete static_cast<Launch*>(self); };
  Launch* raw = launch.release();  // the device destroys it, also where it refuses it
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(static_cast<cudaError_t>(emulator_launch(stream.stream(), raw->op_.name.c_str(), run, raw, destroy,
                                                          raw->accesses_.data(), raw->accesses_.size())));
}

void Launch::store(const c10::IValue& values, const std::vector<at::Tensor>& into) const {
  auto target = into.begin();
  for_each_tensor(values, [&](const at::Tensor& value) {
    if (target != into.end() && target->defined() && value.defined()) {
      target->copy_(value);
    }
    target += target != into.end();
  });
}

void Launch::compute() {
  const OneThread one_thread;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  torch::jit::Stack stack = arguments_;
  if (random_) {
    stack[op_.generator] = generator_of(*random_);
  }
  op_.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < results_.size(); ++i) {
    store(stack[i], results_[i]);
  }
  for (size_t i = 0; i < outs_.size(); ++i) {
    store(arguments_[i], outs_[i]);
  }
  if (answer_) {
    answer_->results = std::move(stack);
    answer_->outs = arguments_;
  }
}

void Launch::run() {
  try {
    compute();
  } catch (...) {
    if (answer_) {
      answer_->error = std::current_exception();
    } else {
      fail(message_of(std::current_exception()));
    }
  }
}

/// As a kernel's assertion, which is how torch's CUDA kernels check indices.
void Launch::fail(const std::string& message) const {
  std::fprintf(stderr, "emulator: device-side assertion in %s: %s\n", op_.name.c_str(), message.c_str());
  emulator_lose_device(cudaErrorAssert);
}

}  // namespace emulator
