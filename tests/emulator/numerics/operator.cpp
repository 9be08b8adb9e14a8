#include "numerics/operator.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <unordered_set>

namespace emulator {
namespace {

bool is_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::OptionalType::ofTensor()) || type->isSubtypeOf(*c10::ListType::ofTensors());
}

bool is_generator(const c10::TypePtr& type) {
  static const auto optional = c10::OptionalType::create(c10::GeneratorType::get());
  return type->isSubtypeOf(*optional);
}

/// Scalar, Scalar?, Scalar[], float, float?, float[].
bool is_number(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    return is_number(type->containedType(0));
  }
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

bool has_shape_from_numbers(const std::string& name) {
  return name == "aten::arange" || name == "aten::range";
}

/// torch tags these ops, most `out=` overloads are missing. index is tagged for its boolean masks.
bool has_shape_from_values(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::_ctc_loss",  "aten::_unique",      "aten::_unique2",           "aten::bincount",
      "aten::equal",      "aten::nonzero",      "aten::masked_select",      "aten::repeat_interleave",
      "aten::unique_dim", "aten::linalg_lstsq", "aten::unique_consecutive", "aten::unique_dim_consecutive"};
  return names.count(name) != 0;
}

bool is_updated_statistic(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  const bool backward = schema.name().find("backward") != std::string::npos;
  return !backward && (argument.name() == "running_mean" || argument.name() == "running_var");
}

int argument_returned(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) {
    return -1;
  }
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i]) && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool is_view(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) { return argument.alias_info() != nullptr; };
  const auto &results = schema.returns(), &arguments = schema.arguments();
  return !results.empty() && std::all_of(results.begin(), results.end(), aliases) &&
         std::none_of(arguments.begin(), arguments.end(), is_written);
}

Operator::Operator(const c10::OperatorHandle& op) : handle(op), name(c10::toString(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  takes_indices = schema.name().find("aten::index") == 0 || schema.name().find("aten::_index_put_impl_") == 0 ||
                  schema.name().find("aten::_unsafe_index") == 0;
  const bool lengths = schema.name() == "aten::_ctc_loss" || schema.name() == "aten::_ctc_loss_backward";
  for (const c10::Argument& argument : schema.arguments()) {
    const bool indices = argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors()) &&
                         !argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
    if (is_generator(argument.type())) {
      generator = static_cast<int>(arguments.size());
    }
    const bool statistic = is_updated_statistic(schema, argument);
    arguments.push_back({.written = is_written(argument) || statistic,
                         .written_if = statistic ? schema.argumentIndexWithName("training").value_or(-1) : -1,
                         .out = argument.is_out(),
                         .any_value = is_number(argument.type()) && !has_shape_from_numbers(schema.name()),
                         .may_be_on_host = lengths || indices});
  }
  elementwise = op.hasTag(at::Tag::pointwise) || schema.name() == "aten::copy_";
  takes_pivots = schema.argumentIndexWithName("pivots") || schema.argumentIndexWithName("LU_pivots");
  synchronous = has_shape_from_values(schema.name());
  for (const c10::Argument& result : schema.returns()) {
    results.push_back({argument_returned(schema, result), result.type()->isSubtypeOf(*c10::ListType::ofTensors())});
    returns_new |= results.back().argument < 0;
    synchronous |= !is_tensors(result.type());
  }
}

}  // namespace emulator
