#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "memory/owned_memory.h"
#include "model/op_profile.h"

// The identity of an op, for its profile: its name and the shapes, dtypes and devices of its tensors. It includes lists
// of numbers (the size of a factory's result), but not single numbers (a learning rate).

namespace torchshare {

/// FNV-1a: equal in every process, so that profiles can be saved.
constexpr std::uint64_t hash_name(std::string_view name, std::uint64_t seed = 0xcbf29ce484222325ULL) {
  for (const char c : name) {
    seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return seed;
}

/// True if the tensor has sizes and they are plain integers.
inline bool has_plain_sizes(const c10::TensorImpl& tensor) {
  return !tensor.has_symbolic_sizes_strides() && !tensor.is_nested();
}

/// Hashes arguments.
class SignatureReader {
 public:
  explicit SignatureReader(std::uint64_t seed) : hash_(seed) {}
  std::uint64_t hash() const { return hash_; }

  void read(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      number(0);
      return;
    }
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    number(static_cast<std::uint64_t>(impl.dtype().toScalarType()) << 8 |
           static_cast<std::uint64_t>(impl.key_set().highestBackendKey()));
    if (has_plain_sizes(impl)) {
      read(impl.sizes());
    }
  }
  void read(const std::optional<at::Tensor>& tensor) { tensor ? read(*tensor) : number(0); }
  void read(at::TensorList tensors) { each(tensors); }
  void read(const at::ITensorListRef& tensors) { each(tensors); }
  void read(c10::IntArrayRef numbers) {
    std::uint64_t folded = numbers.size();
    for (const std::int64_t value : numbers) {
      folded = folded * 0x100000001b3ULL + static_cast<std::uint64_t>(value);
    }
    number(folded);
  }
  void read(c10::SymIntArrayRef numbers);
  void read(const c10::IValue& value);
  template <class Other>
  void read(const Other&) {}

 private:
  void number(std::uint64_t value) { hash_ = mix(hash_, value); }
  template <class List>
  void each(const List& tensors) {
    number(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      read(tensor);
    }
  }

  std::uint64_t hash_;
};

/// Prints tensors: "Float[32, 64]". Lists are printed as their first element and their length.
class TextReader {
 public:
  explicit TextReader(std::string name) : text_(std::move(name) + "(") {}
  std::string text() const { return text_ + ")"; }

  void read(const at::Tensor& tensor);
  void read(const std::optional<at::Tensor>& tensor) { tensor ? read(*tensor) : void(); }
  void read(at::TensorList tensors) { first_of(tensors); }
  void read(const at::ITensorListRef& tensors) { first_of(tensors); }
  void read(const c10::IValue& value);
  template <class Other>
  void read(const Other&) {}

 private:
  template <class List>
  void first_of(const List& tensors) {
    for (const at::Tensor& tensor : tensors) {
      read(tensor);
      text_ += "*" + std::to_string(tensors.size());
      return;
    }
  }

  std::string text_;
};

/// Throws a ValueError for tensors that another job owns or that are on another GPU.
class OwnerCheck {
 public:
  OwnerCheck(const MemoryOwner& mine, const char* op) : mine_(mine), op_(op) {}

  void read(const at::Tensor& tensor);
  void read(const std::optional<at::Tensor>& tensor) { tensor ? read(*tensor) : void(); }
  void read(at::TensorList tensors) { each(tensors); }
  void read(const at::ITensorListRef& tensors) { each(tensors); }
  void read(const c10::IValue& value);
  template <class Other>
  void read(const Other&) {}

 private:
  template <class List>
  void each(const List& tensors) {
    for (const at::Tensor& tensor : tensors) {
      read(tensor);
    }
  }

  const MemoryOwner& mine_;
  const char* op_;
};

/// A call with typed arguments, held by reference.
template <class... Arguments>
class TypedCall {
 public:
  TypedCall(std::uint64_t name_hash, const char* name, const Arguments&... arguments)
      : name_hash_(name_hash), name_(name), arguments_(arguments...) {}
  std::uint64_t signature() const {
    SignatureReader reader(name_hash_);
    std::apply([&](const auto&... each) { (reader.read(each), ...); }, arguments_);
    return reader.hash();
  }
  std::string text() const {
    TextReader reader(name_);
    std::apply([&](const auto&... each) { (reader.read(each), ...); }, arguments_);
    return reader.text();
  }
  void check_owners(const MemoryOwner& mine) const {
    OwnerCheck check(mine, name_);
    std::apply([&](const auto&... each) { (check.read(each), ...); }, arguments_);
  }

 private:
  std::uint64_t name_hash_;
  const char* name_;
  std::tuple<const Arguments&...> arguments_;
};

/// A compiled step or a captured CUDA graph: it has a name and counts as one op.
class NamedCall {
 public:
  NamedCall(std::uint64_t signature, const std::string& name) : signature_(signature), name_(name) {}
  std::uint64_t signature() const { return signature_; }
  const std::string& text() const { return name_; }
  void check_owners(const MemoryOwner&) const {}  // its tensors were checked by earlier ops

 private:
  std::uint64_t signature_;
  const std::string& name_;
};

/// A boxed call: its arguments are on the stack.
class BoxedCall {
 public:
  BoxedCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : op_(op), stack_(stack) {}
  std::uint64_t signature() const;
  std::string text() const;
  void check_owners(const MemoryOwner& mine) const;

 private:
  const c10::OperatorHandle& op_;
  const torch::jit::Stack& stack_;
};

}  // namespace torchshare
