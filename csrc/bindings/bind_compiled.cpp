#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/typed.h"
#include "compiled/compiled_model.h"
#include "compiled/step_package.h"
#include "runtime/job.h"
#include "torchshare/compiled_step.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;
using Tensors = std::vector<at::Tensor>;
using Draw = std::tuple<at::Tensor, int, double, double>;
using Package = std::tuple<std::shared_ptr<StepPackage>, Tensors, std::vector<Draw>, Tensors,
                           std::vector<std::size_t>>;  // see BoundPackage
using Pieces = std::vector<std::pair<Tensors, double>>;

std::vector<Noise> noise(const std::vector<Draw>& given) {
  std::vector<Noise> noise;
  for (const auto& [tensor, kind, first, second] : given) {
    noise.push_back({tensor, static_cast<Noise::Kind>(kind), first, second});
  }
  return noise;
}

std::vector<BoundPackage> bound(const std::vector<Package>& packages) {
  std::vector<BoundPackage> bound;
  for (const auto& [package, tensors, draws, example, counts] : packages) {
    bound.emplace_back(package, tensors, noise(draws), example, counts);
  }
  return bound;
}

std::vector<Piece> pieces(const Pieces& given) {
  std::vector<Piece> pieces;
  for (const auto& [data, weight] : given) {
    pieces.push_back({data, weight});
  }
  return pieces;
}

std::unique_ptr<CompiledStep> make_step(const std::vector<Package>& whole, const std::vector<Package>& gradients,
                                        const std::vector<Package>& update, Tensors accumulators, at::Tensor weight) {
  return std::make_unique<CompiledStep>(bound(whole), bound(gradients),
                                        update.empty() ? std::nullopt : std::optional(bound(update).front()),
                                        std::move(accumulators), std::move(weight));
}

Tensors run_batches(RuntimeJob& job, const CompiledStep& step, const std::vector<Pieces>& given) {
  std::vector<std::vector<Piece>> batches;
  for (const Pieces& batch : given) {
    batches.push_back(pieces(batch));
  }
  return run_steps(job, step, batches);
}

/// `with Unhooked():` see ContextPause.
struct Unhooked {
  std::optional<ContextPause> pause;
};

/// `with PackageLoading():`
struct PackageLoadingBlock {
  std::optional<PackageLoading> loading;
};

}  // namespace

void bind_compiled(py::module_& module) {
  py::class_<Unhooked>(module, "Unhooked")
      .def(py::init())
      .def("__enter__", [](Unhooked& unhooked) { unhooked.pause.emplace(); })
      .def("__exit__", [](Unhooked& unhooked, const ExitArgs&) { unhooked.pause.reset(); });
  py::class_<PackageLoadingBlock>(module, "PackageLoading")
      .def(py::init())
      .def(
          "__enter__", [](PackageLoadingBlock& block) { block.loading.emplace(); }, ReleaseGil())
      .def("__exit__", [](PackageLoadingBlock& block, const ExitArgs&) { block.loading.reset(); });
  module.def(
      "tensor_spec", [](const at::Tensor& tensor, bool any_rows) { return TensorSpec(tensor, any_rows).text(); },
      py::arg("tensor"), py::arg("any_rows") = false);
  py::class_<StepPackage, std::shared_ptr<StepPackage>>(module, "StepPackage")
      .def(py::init<const std::string&, std::size_t>(), py::arg("path"), py::arg("runners") = 1, ReleaseGil())
      .def(
          "check", [](const StepPackage& package, const Tensors& inputs) { package.specs(inputs); }, py::arg("inputs"))
      .def(
          "run",
          [](StepPackage& package, const Tensors& inputs) {
            package.specs(inputs);
            return package.run(inputs);
          },
          py::arg("inputs"), ReleaseGil());
  py::class_<CompiledModel>(module, "CompiledModel")
      .def(py::init<std::shared_ptr<StepPackage>, Tensors, const Tensors&>(), py::arg("package"), py::arg("bound"),
           py::arg("example"))
      .def("run", &CompiledModel::run, py::arg("data"), ReleaseGil());
  py::class_<CompiledStep>(module, "CompiledStep")
      .def(py::init(&make_step), py::arg("whole"), py::arg("gradients"), py::arg("update"), py::arg("accumulators"),
           py::arg("weight"))
      .def(
          "covers", [](const CompiledStep& step, const Pieces& given) { return step.covers(pieces(given)); },
          py::arg("pieces"))
      .def(
          "run",
          [](const CompiledStep& step, std::optional<RuntimeJob*> job, const Pieces& given) {
            return step.run(job.value_or(nullptr), pieces(given));
          },
          py::arg("job"), py::arg("pieces"), ReleaseGil());
  module.def("run_steps", &run_batches, py::arg("job"), py::arg("step"), py::arg("batches"), ReleaseGil());
}

}  // namespace torchshare::bindings
