#include "numerics/shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <c10/core/thread_pool.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <mutex>

#include "numerics/no_warnings.h"
#include "numerics/one_thread.h"
#include "numerics/random.h"
#include "numerics/tensors.h"

namespace emulator {
namespace {

using Words = std::vector<int64_t>;

/// Kernels check the sign of a number, or that it is a probability; its exact value does not change a shape.
int64_t range_of(double number) {
  if (std::isnan(number)) {
    return 0;
  }
  const double bounds[] = {-HUGE_VAL, -1, 0, 1, HUGE_VAL};
  int64_t range = 1;
  for (const double bound : bounds) {
    range += (number >= bound) + (number > bound);
  }
  return range;
}

void append(Words& words, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words.push_back(-1);
    return;
  }
  const int64_t flags = tensor.is_cuda() | tensor.is_conj() << 1 | tensor.is_neg() << 2 |
                        tensor.unsafeGetTensorImpl()->is_wrapped_number() << 3;
  words.push_back(static_cast<int64_t>(tensor.scalar_type()) << 32 | tensor.dim() << 8 | flags);
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  words.insert(words.end(), tensor.strides().begin(), tensor.strides().end());
}

void append(Words& words, const std::string& text) {
  const size_t begin = words.size();
  words.resize(begin + 1 + (text.size() + 7) / 8);
  words[begin] = static_cast<int64_t>(text.size());
  std::memcpy(&words[begin + 1], text.data(), text.size());
}

void append(Words& words, const c10::IValue& value, bool any_value) {
  if (value.isTensor()) {
    append(words, value.toTensor());
  } else if (value.isNone()) {
    words.push_back(-2);
  } else if (value.isInt()) {
    words.push_back(-3);
    words.push_back(any_value ? range_of(static_cast<double>(value.toInt())) : value.toInt());
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    int64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    words.push_back(-4);
    words.push_back(any_value ? range_of(number) : bits);
  } else if (value.isBool()) {
    words.push_back(value.toBool() ? -5 : -6);
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> elements = value.toListRef();
    words.push_back(-7);
    words.push_back(static_cast<int64_t>(elements.size()));
    for (const c10::IValue& element : elements) {
      append(words, element, any_value);
    }
  } else if (value.isComplexDouble()) {
    words.push_back(-8);
  } else if (value.isGenerator() || value.isDevice()) {
    words.push_back(-9);
  } else if (value.isString()) {
    words.push_back(-10);
    append(words, value.toStringRef());
  } else {
    TORCH_CHECK(false, "emulator: an argument of type ", value.tagKind(), " is not emulated");
  }
}

Shape shape_of(const at::Tensor& tensor) {
  Shape shape;
  if (tensor.defined()) {
    shape.defined = true;
    shape.type = tensor.scalar_type();
    shape.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
    shape.strides.append(tensor.strides().begin(), tensor.strides().end());
  }
  return shape;
}

/// Integers of 0 are indices in range, numbers of 0.5 are probabilities and have logarithms.
at::Tensor dummy(const at::Tensor& tensor, int64_t integer) {
  if (!is_on_device(tensor)) {
    return kernel_argument(tensor, false);
  }
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  const auto bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize());
  const int64_t count = static_cast<int64_t>(bytes) / item;
  const bool half = (tensor.is_floating_point() && item > 1) || tensor.is_complex();
  const at::TensorOptions options(tensor.scalar_type());
  const at::Tensor memory = half ? at::full({count}, 0.5, options) : at::full({count}, integer, options);
  at::Tensor made = at::as_strided(memory, tensor.sizes(), tensor.strides(), 0);
  copy_flags(tensor, made);
  return made;
}

bool same_sizes(const c10::IValue& value, const c10::IValue& other) {
  const std::vector<Shape> shapes = shapes_of(value), others = shapes_of(other);
  return std::equal(shapes.begin(), shapes.end(), others.begin(), others.end(),
                    [](const Shape& shape, const Shape& other) { return shape.sizes == other.sizes; });
}

Shapes run_on_dummies(const Operator& op, const c10::IValue* arguments) {
  const OneThread one_thread;
  const NoWarnings no_warnings;  // the host itself warns where it resizes `out=`
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  torch::jit::Stack given;
  const auto make_dummy = [&](const at::Tensor& tensor) { return dummy(tensor, op.takes_pivots); };
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    const bool generator = static_cast<int>(i) == op.generator;
    given.push_back(generator ? c10::IValue(generator_of(0, 0)) : map_tensors(arguments[i], make_dummy));
  }
  torch::jit::Stack stack = given;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  Shapes shapes;
  for (const c10::IValue& result : stack) {
    shapes.results.push_back(shapes_of(result));
  }
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    const Argument& argument = op.arguments[i];
    shapes.outs.push_back(argument.out ? shapes_of(given[i]) : std::vector<Shape>());
    TORCH_CHECK(argument.out || !argument.written || same_sizes(given[i], arguments[i]), "emulator: ", op.name,
                " resizes the argument that it writes, which is not emulated");
  }
  return shapes;
}

/// On a thread of its own: the caller may be a job, in a dispatch mode, or under autocast.
Shapes infer(const Operator& op, const c10::IValue* arguments) {
  static auto& thread = *new c10::ThreadPool(1);
  std::packaged_task<Shapes()> task([&] { return run_on_dummies(op, arguments); });
  std::future<Shapes> shapes = task.get_future();
  thread.run([&] { task(); });
  try {
    return shapes.get();
  } catch (...) {
    return {.results = {}, .outs = {}, .refused = std::current_exception()};
  }
}

}  // namespace

std::vector<Shape> shapes_of(const c10::IValue& value) {
  std::vector<Shape> shapes;
  for_each_tensor(value, [&](const at::Tensor& tensor) { shapes.push_back(shape_of(tensor)); });
  return shapes;
}

const Shapes& ShapeCache::find(const Operator& op, const c10::IValue* arguments) {
  static thread_local Words words;
  words.clear();
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    append(words, arguments[i], op.arguments[i].any_value);
  }
  const std::string_view signature(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = shapes_.find(signature); found != shapes_.end()) {
      return *found->second;
    }
  }
  auto shapes = std::make_unique<Shapes>(infer(op, arguments));
  const std::unique_lock lock(mutex_);
  return *shapes_.try_emplace(std::string(signature), std::move(shapes)).first->second;
}

}  // namespace emulator
