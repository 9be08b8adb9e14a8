/// The shapes of an op's results: what the CPU's kernel returns for dummies of the arguments' shapes, kept for each
/// signature. This needs no meta kernels, checks the arguments as the host does, and gives the strides that the kernel
/// will write.
#pragma once

#include <c10/util/SmallVector.h>

#include <exception>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "numerics/operator.h"

namespace emulator {

struct Shape {
  bool defined = false;
  at::ScalarType type{};
  c10::SmallVector<int64_t, 5> sizes, strides;
};

struct Shapes {
  std::vector<std::vector<Shape>> results;  // by position; a result that is no list has one
  std::vector<std::vector<Shape>> outs;     // of the arguments that are `out`, by position among the arguments
  std::exception_ptr refused;               // why the CPU's kernel did not take the dummies
};

/// One op's. Thread-safe; the shapes returned are never removed.
class ShapeCache {
 public:
  const Shapes& find(const Operator& op, const c10::IValue* arguments);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view signature) const { return std::hash<std::string_view>()(signature); }
  };
  std::shared_mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Shapes>, Hash, std::equal_to<>> shapes_;  // by signature
};

std::vector<Shape> shapes_of(const c10::IValue& value);

}  // namespace emulator
