#include "torchshare/compiled_step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compiled/step_package.h"
#include "hook/op_hook.h"

// Tests that need compiled code are in tests/python/test_compiled_step.py: only Python can compile it.

namespace torchshare {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TensorSpec, TellsShapesStridesAndTypesApart) {
  const TensorSpec spec(at::zeros({2, 3}));
  EXPECT_EQ(spec.text(), "Float[2, 3] strides [3, 1] cpu");
  EXPECT_TRUE(spec.matches(at::ones({2, 3})));
  EXPECT_FALSE(spec.matches(at::zeros({3, 2})));
  EXPECT_FALSE(spec.matches(at::zeros({3, 2}).t()));
  EXPECT_FALSE(spec.matches(at::zeros({2, 3}, at::kDouble)));
}

TEST(TensorSpec, WithAnyRowsLeavesTheFirstDimensionOpen) {
  const TensorSpec spec(at::zeros({2, 3}), /*any_rows=*/true);
  EXPECT_EQ(spec.text(), "Float[*, 3] strides [3, 1] cpu");
  EXPECT_TRUE(spec.matches(at::zeros({7, 3})));
  EXPECT_FALSE(spec.matches(at::zeros({0, 3})));
  EXPECT_FALSE(spec.matches(at::zeros({2, 4})));
  EXPECT_FALSE(spec.matches(at::zeros({3})));
  EXPECT_EQ(TensorSpec(at::zeros({5}), true).text(), "Float[*] strides [1] cpu");
  EXPECT_FALSE(TensorSpec(at::zeros({}), true).any_rows());
}

TEST(StepPackage, RefusesFilesThatAreNoPackages) {
  EXPECT_THAT(
      [] { StepPackage package("/nowhere/step.pt2"); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("'/nowhere/step.pt2' is not the package of a compiled step")));
  const auto path = std::filesystem::temp_directory_path() / "torchshare_compiled_step_test.pt2";
  std::ofstream(path) << "text";
  EXPECT_THAT([&] { StepPackage package(path); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("is not the package")));
  std::filesystem::remove(path);
}

TEST(LoadPackage, RefusesAFolderWithoutAStep) {
  EXPECT_THAT([] { load_package("/nowhere"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'/nowhere/tensors.pt' cannot be read")));
}

TEST(CompiledStep, CoversNothingWithoutPackages) {
  const CompiledStep step({}, {}, std::nullopt, {}, at::ones({}, at::kDouble));
  EXPECT_FALSE(step.covers({}));
  EXPECT_FALSE(step.covers({{{at::ones({2})}, 1.0}}));
  EXPECT_FALSE(step.covers({{{at::ones({2})}, 0.5}, {{at::ones({2})}, 0.5}}));
  EXPECT_THROW(step.run(nullptr, {{{at::ones({2})}, 1.0}}), std::invalid_argument);
}

TEST(CompiledStep, RequiresItsWeightToBeADouble) {
  EXPECT_THROW(CompiledStep({}, {}, std::nullopt, {}, at::ones({})), std::invalid_argument);
  EXPECT_THROW(CompiledStep({}, {}, std::nullopt, {}, at::ones({2}, at::kDouble)), std::invalid_argument);
}

class CountingContext final : public OpContext {
 public:
  CountingContext() : OpContext(Priority::kPrimary, at::detail::createCPUGenerator(1)) {}
  std::uint64_t ops() const { return slot_.ops(); }

 private:
  void handle_interrupts() override {}
};

TEST(ContextPause, TakesTheThreadOutOfItsJobAndBack) {
  install_op_hook();
  CountingContext context;
  const ContextScope scope(context);
  const at::Tensor x = at::zeros({2});
  const auto before = context.ops();
  {
    const ContextPause pause;
    x.add_(1);
    EXPECT_EQ(current_context, nullptr);
  }
  EXPECT_EQ(context.ops(), before);
  x.add_(1);
  EXPECT_EQ(context.ops(), before + 1);
}

TEST(ContextPause, DoesNothingOutsideAJob) {
  { const ContextPause pause; }
  EXPECT_EQ(current_context, nullptr);
}

}  // namespace
}  // namespace torchshare
