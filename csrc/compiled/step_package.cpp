#include "compiled/step_package.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "hook/op_call.h"
#include "memory/owned_memory.h"

namespace torchshare {
namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

std::unordered_map<std::string, std::string> read_metadata(const std::string& path) {
  try {
    return Loader::load_metadata_from_package(path, "model");
  } catch (const std::exception& error) {
    throw std::invalid_argument(fmt::format("'{}' is not the package of a compiled step: {}", path, error.what()));
  }
}

std::string entry(const std::unordered_map<std::string, std::string>& metadata, const std::string& path,
                  const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    throw std::invalid_argument(fmt::format("'{}' must be a package made by torchshare, has no '{}'", path, key));
  }
  return found->second;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// See PackageLoading. A forked child gets a new lock, because the thread that holds the old one does not exist there.
/// Acquiring the lock around the fork could deadlock: its owner may wait for the GIL, which the forking thread may
/// hold.
std::mutex*& of_all_packages() {
  static std::mutex* mutex = new std::mutex;
  static const int once = pthread_atfork(nullptr, nullptr, [] { of_all_packages() = new std::mutex; });
  (void)once;
  return mutex;
}

void draw(const Noise& noise) {
  switch (noise.kind) {
    case Noise::Kind::kBernoulli:
      noise.tensor.bernoulli_(noise.first);
      break;
    case Noise::Kind::kUniform:
      noise.tensor.uniform_(noise.first, noise.second);
      break;
    case Noise::Kind::kNormal:
      noise.tensor.normal_(noise.first, noise.second);
      break;
    case Noise::Kind::kDropout:
      noise.tensor.copy_(std::get<0>(at::native_dropout(at::ones_like(noise.tensor), noise.first, /*train=*/true)));
      break;
  }
}

}  // namespace

std::vector<at::Tensor> joined(std::vector<at::Tensor> bound, const std::vector<at::Tensor>& data) {
  bound.insert(bound.end(), data.begin(), data.end());
  return bound;
}

PackageLoading::PackageLoading() : lock_(*of_all_packages()) {}

TensorSpec::TensorSpec(const at::Tensor& tensor, bool any_rows)
    : any_rows_(any_rows && tensor.dim() > 0),
      dtype_(tensor.scalar_type()),
      device_(tensor.device().type()),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()) {}

bool TensorSpec::matches(const at::Tensor& tensor) const {
  if (tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) {
    return false;  // its memory holds other numbers
  }
  if (tensor.scalar_type() != dtype_ || tensor.device().type() != device_ || tensor.strides() != strides_) {
    return false;
  }
  return any_rows_ ? tensor.size(0) > 0 && tensor.sizes().slice(1) == at::IntArrayRef(sizes_).slice(1)
                   : tensor.sizes() == sizes_;
}

std::string TensorSpec::text() const {
  std::string sizes = fmt::format("{}", fmt::join(sizes_, ", "));
  if (any_rows_) {
    sizes.replace(0, std::min(sizes.find(','), sizes.size()), "*");
  }
  return fmt::format("{}[{}] strides [{}] {}", c10::toString(dtype_), sizes, fmt::join(strides_, ", "),
                     c10::DeviceTypeName(device_, /*lower_case=*/true));
}

StepPackage::StepPackage(const std::string& path, std::size_t runners) : path_(path) {
  const PackageLoading here;
  const auto metadata = read_metadata(path);
  if (const std::string made_for = entry(metadata, path, package_key::kTorch); made_for != TORCH_VERSION) {
    throw std::invalid_argument(
        fmt::format("'{}' must be compiled for torch {}, got {}", path, TORCH_VERSION, made_for));
  }
  inputs_ = lines(entry(metadata, path, package_key::kInputs));
  name_ = entry(metadata, path, package_key::kName);
  signature_ = hash_name(name_, hash_name(entry(metadata, path, package_key::kInputs)));
  // Single-threaded: no locks, and nothing that a CUDA graph cannot capture.
  loader_ = std::make_unique<Loader>(path, "model", /*run_single_threaded=*/runners == 1, runners);
}

StepPackage::~StepPackage() = default;

std::vector<TensorSpec> StepPackage::specs(const std::vector<at::Tensor>& inputs) const {
  if (inputs.size() != inputs_.size()) {
    throw std::invalid_argument(
        fmt::format("'{}' ({}) expects {} inputs, got {}", path_, name_, inputs_.size(), inputs.size()));
  }
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    specs.emplace_back(inputs[i], inputs_[i].find('*') != std::string::npos);
    if (specs.back().text() != inputs_[i]) {
      throw std::invalid_argument(fmt::format("'{}' ({}) expects input {} to be {}, got {}", path_, name_, i,
                                              inputs_[i], TensorSpec(inputs[i]).text()));
    }
  }
  return specs;
}

std::vector<at::Tensor> StepPackage::infer(const std::vector<at::Tensor>& inputs) {
  return run_op(current_context, NamedCall(signature_, name_), [&] {
    const at::NoGradGuard no_grad;
    return loader_->run(inputs);
  });
}

std::vector<at::Tensor> StepPackage::run(const std::vector<at::Tensor>& inputs, const std::vector<Noise>& noise,
                                         const std::vector<at::Tensor>& counts) {
  const MemoryOwner* const owner = inputs.empty() ? nullptr : memory_owner(inputs.front().device().type());
  const std::shared_ptr<MemoryBudget> budget = owner != nullptr && owner->meters() ? owner->budget() : nullptr;
  return run_op(current_context, NamedCall(signature_, name_), [&] {
    (void)Reservation(budget, need_);
    const at::NoGradGuard no_grad;  // the backward pass is part of the compiled code
    for (const Noise& each : noise) {
      draw(each);
    }
    const std::int64_t before = budget == nullptr ? 0 : budget->held();
    if (budget != nullptr) {
      budget->begin_high_water();
    }
    std::vector<at::Tensor> outputs = loader_->run(inputs);
    if (budget != nullptr) {
      need_ = std::max(need_, budget->high_water() - before);
    }
    for (const at::Tensor& count : counts) {
      count.add_(1);
    }
    return outputs;
  });
}

}  // namespace torchshare
