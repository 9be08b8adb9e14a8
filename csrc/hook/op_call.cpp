#include "hook/op_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace torchshare {
namespace {

const std::string& short_name(at::ScalarType type) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i <= static_cast<int>(at::ScalarType::NumOptions); ++i) {
      all.push_back(c10::toString(static_cast<at::ScalarType>(i)));
    }
    return all;
  }();
  return names[static_cast<std::size_t>(type)];
}

auto arguments_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, op.schema().arguments().size());
}

}  // namespace

void SignatureReader::read(c10::SymIntArrayRef numbers) {
  if (const auto plain = c10::asIntArrayRefSlowOpt(numbers)) {
    read(*plain);
  }
}

void SignatureReader::read(const c10::IValue& value) {
  if (value.isTensor()) {
    read(value.toTensor());
  } else if (value.isTensorList()) {
    each(value.toTensorVector());
  } else if (value.isIntList()) {
    read(c10::IntArrayRef(value.toIntVector()));
  }
}

void TextReader::read(const at::Tensor& tensor) {
  if (text_.back() != '(') {
    text_ += ", ";
  }
  if (!tensor.defined()) {
    text_ += "-";
  } else if (const auto& impl = *tensor.unsafeGetTensorImpl(); has_plain_sizes(impl)) {
    text_ += fmt::format("{}{}", short_name(tensor.scalar_type()), impl.sizes().vec());
  } else {
    text_ += short_name(tensor.scalar_type());
  }
}

void TextReader::read(const c10::IValue& value) {
  if (value.isTensor()) {
    read(value.toTensor());
  } else if (value.isTensorList()) {
    first_of(value.toTensorVector());
  }
}

void OwnerCheck::read(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return;
  }
  mine_.check_device(tensor.device(), op_);
  const auto other = mine_.other_owner(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
  TORCH_CHECK_VALUE(other == nullptr, "job '", mine_.budget()->job(), "': ", op_, " was given a tensor of job '",
                    other->job(),
                    "', which is still running and whose stream may not have written it yet; use tensors of this job, "
                    "tensors made before the jobs, or a copy through the CPU");
}

void OwnerCheck::read(const c10::IValue& value) {
  if (value.isTensor()) {
    read(value.toTensor());
  } else if (value.isTensorList()) {
    each(value.toTensorVector());
  }
}

std::uint64_t BoxedCall::signature() const {
  const c10::OperatorName& name = op_.operator_name();
  SignatureReader reader(hash_name(name.overload_name, hash_name(name.name)));
  for (const c10::IValue& value : arguments_of(op_, stack_)) {
    reader.read(value);
  }
  return reader.hash();
}

void BoxedCall::check_owners(const MemoryOwner& mine) const {
  OwnerCheck check(mine, op_.operator_name().name.c_str());
  for (const c10::IValue& value : arguments_of(op_, stack_)) {
    check.read(value);
  }
}

std::string BoxedCall::text() const {
  TextReader reader(c10::toString(op_.operator_name()));
  for (const c10::IValue& value : arguments_of(op_, stack_)) {
    reader.read(value);
  }
  return reader.text();
}

}  // namespace torchshare
