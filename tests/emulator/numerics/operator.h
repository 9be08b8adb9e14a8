/// What an op's schema says about its arguments and results, worked out once, at installation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace emulator {

struct Argument {
  bool written;         // `Tensor(a!)`, or a running statistic, which the schema does not mark
  int written_if;       // position of the flag that decides it, or -1
  bool out;             // an `out=` argument: resized to the result's shape
  bool any_value;       // a Scalar or float: the shapes of results do not depend on its value
  bool may_be_on_host;  // CUDA's kernel accepts a tensor with dimensions from the host
};

struct Result {
  int argument;  // the position of the written argument that is returned; -1: a new one
  bool list;     // of tensors
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  std::string name;  // with its overload, for messages and the race check
  std::vector<Argument> arguments;
  std::vector<Result> results;
  int generator = -1;          // the position of that argument
  bool returns_new = false;    // at least one result is new
  bool synchronous = false;    // a result is a number, or a shape depends on values: CUDA's kernel waits for the stream
  bool elementwise = false;    // what is written must not overlap what is read
  bool takes_pivots = false;   // of LAPACK, which counts from 1 and does not check them
  bool takes_indices = false;  // index and index_put: boolean masks among them have to be counted first
};

bool is_written(const c10::Argument& argument);

/// Every result is a view of an argument, and nothing is written.
bool is_view(const c10::FunctionSchema& schema);

}  // namespace emulator
