#include "hook/op_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace torchshare {
namespace {

/// A job that counts calls of `handle_interrupts`, and throws if told to.
class FakeJob final : public OpContext {
 public:
  FakeJob() : OpContext(Priority::kSecondary, at::detail::createCPUGenerator(7)) { install_op_hook(); }
  void raise_interrupt() { slot_.interrupts.store(kCancel); }
  void handle_interrupts() override {
    ++attended_;
    if (throw_) {
      throw std::runtime_error("stopped at the gate");
    }
  }
  int attended_ = 0;
  bool throw_ = false;
};

std::uint64_t ops_of(FakeJob& job, const std::function<void()>& body) {
  const ContextScope scope(job);
  const auto before = job.slot().ops();
  body();
  EXPECT_FALSE(job.slot().inside());
  return job.slot().ops() - before;
}

TEST(OpHook, CountsHotBoxedAndRandomOpsOnceEach) {
  FakeJob job;
  at::Tensor x = at::ones({4});
  EXPECT_EQ(ops_of(job, [&] { x.add_(x); }), 1U);
  EXPECT_EQ(ops_of(job, [&] { x.atan_(); }), 1U);
  EXPECT_EQ(ops_of(job, [&] { x.bernoulli_(0.5); }), 1U);
  EXPECT_EQ(ops_of(job, [&] { at::conv2d(at::ones({1, 1, 4, 4}), at::ones({1, 1, 2, 2})); }), 3U);  // two factories
}

TEST(OpHook, DoesNotGateViews) {
  FakeJob job;
  at::Tensor x = at::ones({4, 4});
  EXPECT_EQ(ops_of(job,
                   [&] {
                     x.view({16});
                     x.select(0, 1);
                     x.t();
                     x.detach();
                     x.narrow(0, 1, 2);
                   }),
            0U);
}

TEST(OpHook, SeesForwardAndBackwardAlike) {
  FakeJob job;
  at::Tensor w = at::ones({4}).requires_grad_();
  at::Tensor loss;
  ops_of(job, [&] { loss = w.mul(w).sum(); });
  EXPECT_GE(ops_of(job, [&] { loss.backward(); }), 2U);
}

TEST(OpHook, IsSwitchedOffOutsideTheScope) {
  FakeJob job;
  at::Tensor x = at::ones({4});
  job.raise_interrupt();
  x.add_(x);
  EXPECT_EQ(job.attended_, 0);
  EXPECT_EQ(ops_of(job, [&] { x.add_(x); }), 1U);
  EXPECT_EQ(job.attended_, 1);
}

TEST(OpHook, WhatTheGateThrowsUnwindsTheOpAndLeavesTheJobOutside) {
  FakeJob job;
  at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor loss = x.mul(x).sum();
  const ContextScope scope(job);
  job.raise_interrupt();
  job.throw_ = true;
  EXPECT_THROW(x.detach().add_(1), std::runtime_error);
  EXPECT_THROW(at::ones({2}).atan_(), std::runtime_error);
  EXPECT_THROW(loss.backward(), std::runtime_error);
  EXPECT_FALSE(job.slot().inside());
  job.throw_ = false;
  x.mul(x).sum().backward();  // autograd still works
}

TEST(OpHook, DrawsFromTheJobsGeneratorAndLeavesTheDefaultAlone) {
  FakeJob job;
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  at::Tensor in_job;
  ops_of(job, [&] {
    in_job = at::cat({at::randn({8}), at::rand({8}), at::randperm(8),
                      std::get<0>(at::native_dropout(at::ones({8}), 0.5, true)),
                      at::empty({8}).uniform_(0, 1, at::detail::getDefaultCPUGenerator())});
  });
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
  at::Generator same_seed = at::detail::createCPUGenerator(7);
  const at::Tensor alone =
      at::cat({at::randn({8}, same_seed), at::rand({8}, same_seed), at::randperm(8, same_seed),
               at::empty({8}).bernoulli_(0.5, same_seed).mul(2), at::empty({8}).uniform_(0, 1, same_seed)});
  EXPECT_TRUE(at::equal(in_job, alone));
}

TEST(OpHook, KeepsAGeneratorThatTheCallerChose) {
  FakeJob job;
  at::Generator chosen = at::detail::createCPUGenerator(3);
  at::Tensor in_job;
  ops_of(job, [&] { in_job = at::randn({8}, chosen); });
  EXPECT_TRUE(at::equal(in_job, at::randn({8}, at::detail::createCPUGenerator(3))));
}

TEST(OpHook, ForkedChildrenBelongToNoJob) {
  FakeJob job;
  const ContextScope scope(job);
  const pid_t child = fork();
  if (child == 0) {
    _exit(current_context == nullptr ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(current_context, &job);
}

}  // namespace
}  // namespace torchshare
