#include "compiled/compiled_model.h"

#include <utility>

#include "compiled/step_package.h"

namespace torchshare {

CompiledModel::CompiledModel(std::shared_ptr<StepPackage> package, std::vector<at::Tensor> bound,
                             const std::vector<at::Tensor>& example)
    : package_(std::move(package)), bound_(std::move(bound)), specs_(package_->specs(joined(bound_, example))) {}

bool CompiledModel::matches(const std::vector<at::Tensor>& inputs) const {
  std::optional<std::int64_t> rows;  // of all inputs with any number of rows: the code reads it from one of them
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!specs_[i].matches(inputs[i])) {
      return false;
    }
    if (specs_[i].any_rows()) {
      if (rows && *rows != inputs[i].size(0)) {
        return false;
      }
      rows = inputs[i].size(0);
    }
  }
  return true;
}

std::optional<std::vector<at::Tensor>> CompiledModel::run(const std::vector<at::Tensor>& data) const {
  const std::vector<at::Tensor> inputs = joined(bound_, data);
  if (inputs.size() != specs_.size() || !matches(inputs)) {
    return std::nullopt;
  }
  return package_->infer(inputs);
}

}  // namespace torchshare
