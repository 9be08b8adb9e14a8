#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "device/cpu/idle_priority.h"
#include "device/cuda_stand_in.h"
#include "device/marker_cost.h"
#include "gate/op_watch.h"
#include "gate/wake_cost.h"
#include "hook/op_context.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

double to_seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// `with Ungated():`
struct UngatedBlock {
  std::optional<Ungated> ungated;
};

}  // namespace

void bind_gate(py::module_& module) {
  py::class_<UngatedBlock>(module, "Ungated")
      .def(py::init<>())
      .def("__enter__", [](UngatedBlock& block) { block.ungated.emplace(); })
      .def("__exit__", [](UngatedBlock& block, const py::args&) { block.ungated.reset(); });
  py::class_<WakeCost>(module, "WakeCost")
      .def_property_readonly("notify_s", [](const WakeCost& cost) { return to_seconds(cost.notify); })
      .def_property_readonly("latency_s", [](const WakeCost& cost) { return to_seconds(cost.latency); })
      .def_property_readonly("shortest_gap_s", [](const WakeCost& cost) { return to_seconds(cost.shortest_gap()); });
  module.def(
      "measure_marker_cost",
      [](const std::string& kind, int count) {
        const MarkerCost cost = measure_marker_cost(kind, count);
        return std::pair(to_seconds(cost.put), to_seconds(cost.look));
      },
      py::arg("kind"), py::arg("count"), py::call_guard<py::gil_scoped_release>());
  module.def("keep_cuda_stand_in", &keep_cuda_stand_in);
  module.def("may_raise_priority", &may_raise_priority, py::call_guard<py::gil_scoped_release>());
  module.def("measure_wake_cost", &measure_wake_cost, py::call_guard<py::gil_scoped_release>());
  py::class_<OpTime>(module, "OpTime")
      .def(py::init<double, double, std::uint32_t>(), py::arg("mean"), py::arg("spread"), py::arg("count"))
      .def_readonly("mean", &OpTime::mean)
      .def_readonly("spread", &OpTime::spread)
      .def_readonly("count", &OpTime::count);
  py::class_<OpProfile>(module, "OpProfile")
      .def(py::init<std::uint64_t, std::uint64_t, std::string, OpTime, OpTime>(), py::arg("signature"),
           py::arg("context"), py::arg("text"), py::arg("duration"), py::arg("gap"))
      .def_readonly("signature", &OpProfile::signature)
      .def_readonly("context", &OpProfile::context)
      .def_readonly("text", &OpProfile::text)
      .def_readonly("duration", &OpProfile::duration)
      .def_readonly("gap", &OpProfile::gap);
  py::class_<GapStats>(module, "GapStats")
      .def_readonly("ops", &GapStats::ops)
      .def_readonly("unknown_ops", &GapStats::unknown_ops)
      .def_readonly("gaps_opened", &GapStats::gaps_opened)
      .def_readonly("gaps_filled", &GapStats::gaps_filled)
      .def_readonly("returns_into_filler", &GapStats::returns_into_filler)
      .def_property_readonly("capacity_s", [](const GapStats& stats) { return to_seconds(stats.capacity); })
      .def_property_readonly("cost_s", [](const GapStats& stats) { return to_seconds(stats.cost); })
      .def_property_readonly("filled_s", [](const GapStats& stats) { return to_seconds(stats.filled); });
}

}  // namespace torchshare::bindings
