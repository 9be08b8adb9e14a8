#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/turns.h"
#include "bindings/typed.h"
#include "device/cpu/low_priority.h"
#include "device/cuda_stand_in.h"
#include "device/cuda_status.h"
#include "device/marker_cost.h"
#include "gate/op_watch.h"
#include "gate/wake_cost.h"
#include "hook/op_call.h"
#include "hook/op_context.h"
#include "memory/cpu_memory.h"
#include "model/time.h"

namespace py = pybind11;

namespace torchshare::bindings {

void bind_gate(py::module_& module) {
  py::class_<Turns>(module, "Turns")
      .def(py::init<py::object>(), py::arg("lock"))
      .def("__enter__", &Turns::enter)
      .def("__exit__", [](Turns& turns, const ExitArgs&) { turns.exit(); })
      .def("exit_all", &Turns::exit_all)
      .def("call_if_free", &Turns::call_if_free, py::arg("function"))
      .def("is_held_elsewhere", &Turns::is_held_elsewhere)
      .def("forget_others", &Turns::forget_others);
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
  module.def(
      "cache_memory_of_process",
      [](bool enabled) {
        install_cpu_memory();
        cache_memory_of_process(enabled);
      },
      py::arg("enabled"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "for_the_process",
      [](const py::typing::Callable<void()>& call) {
        const MemoryScope of_no_job(nullptr);
        call();
      },
      py::arg("call"));
  module.def(
      "run_kernel",
      [](const std::string& name, const py::typing::Callable<py::object(py::ellipsis)>& launch,
         const py::Args<py::object>& args, const py::KWArgs<py::object>& kwargs) {
        return run_op(current_context, NamedCall(hash_name(name), name), [&] { return launch(*args, **kwargs); });
      },
      py::arg("name"), py::arg("launch"), py::pos_only());
  module.def("cuda_status", &cuda_status);
  module.def("cuda_driver_version", &cuda_driver_version);
  module.def("keep_cuda_stand_in", &keep_cuda_stand_in);
  module.def("may_raise_priority", &may_raise_priority, py::call_guard<py::gil_scoped_release>());
  module.def("measure_wake_cost", &measure_wake_cost, py::call_guard<py::gil_scoped_release>());
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
