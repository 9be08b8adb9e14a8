#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "torchshare/compiled_step.h"

namespace torchshare {

/// A model's forward pass without gradients: a package, and the model's own parameters and buffers. Any thread.
class CompiledModel {
 public:
  /// The inputs of `package` are `bound` and data like `example`. Throws std::invalid_argument if it was compiled for
  /// other ones.
  CompiledModel(std::shared_ptr<StepPackage> package, std::vector<at::Tensor> bound,
                const std::vector<at::Tensor>& example);

  /// What the model returns, computed as one op of the calling thread's job; see StepPackage::run. Empty if the data or
  /// the bound tensors differ from what was compiled in shape, strides, dtype or device.
  std::optional<std::vector<at::Tensor>> run(const std::vector<at::Tensor>& data) const;

 private:
  bool matches(const std::vector<at::Tensor>& inputs) const;

  const std::shared_ptr<StepPackage> package_;
  const std::vector<at::Tensor> bound_;
  const std::vector<TensorSpec> specs_;  // of the bound tensors and the data
};

}  // namespace torchshare
