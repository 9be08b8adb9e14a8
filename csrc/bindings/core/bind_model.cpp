#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "model/latency_target.h"
#include "model/op_profile.h"
#include "model/request_times.h"
#include "model/split.h"
#include "policy/gate_policy.h"
#include "torchshare/values.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

using std::chrono::nanoseconds;

std::vector<std::pair<std::int64_t, std::int64_t>> split(std::int64_t batch, std::int64_t sub_batch) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (const Rows& rows : split_rows(batch, sub_batch)) {
    pieces.emplace_back(rows.begin, rows.end);
  }
  return pieces;
}

}  // namespace

void bind_model(py::module_& module) {
  module.def("split_rows", &split, py::arg("batch"), py::arg("sub_batch"));
  module.def(
      "outranks",
      [](const std::string& a, const std::string& b) { return outranks(parse_priority(a), parse_priority(b)); },
      py::arg("a"), py::arg("b"));
  module.def(
      "priority_level", [](const std::string& text) { return static_cast<int>(parse_priority(text)); },
      py::arg("text"));
  module.def("gate_policy_names", &gate_policy_names);
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
  py::class_<TimeSpread>(module, "TimeSpread")
      .def_property_readonly("count", &TimeSpread::count)
      .def_property_readonly("mean", &TimeSpread::mean)
      .def("quantile", &TimeSpread::quantile, py::arg("share"))
      .def("at_most", &TimeSpread::at_most, py::arg("time"));
  py::class_<LatencyTarget>(module, "LatencyTarget")
      .def(py::init(&parse_latency_target), py::arg("slo"))
      .def_readonly("quantile", &LatencyTarget::quantile)
      .def_readonly("limit", &LatencyTarget::limit);
  const auto internal = py::return_value_policy::reference_internal;
  py::class_<RequestTimes>(module, "RequestTimes")
      .def(py::init<>())
      .def(
          "answered",
          [](RequestTimes& times, std::int64_t arrival, std::int64_t begin, std::int64_t end) {
            return times.answered(nanoseconds(arrival), nanoseconds(begin), nanoseconds(end));
          },
          py::arg("arrival"), py::arg("begin"), py::arg("end"))
      .def("failed", &RequestTimes::failed)
      .def(
          "gave_up",
          [](RequestTimes& times, std::int64_t arrival, std::int64_t end) {
            return times.given_up(nanoseconds(arrival), nanoseconds(end));
          },
          py::arg("arrival"), py::arg("end"))
      .def("promise", &RequestTimes::promise, py::arg("limit"))
      .def_property_readonly("given_up", py::overload_cast<>(&RequestTimes::given_up, py::const_))
      .def_property_readonly("late", &RequestTimes::late)
      .def_property_readonly("failures", &RequestTimes::failures)
      .def_property_readonly("latency", &RequestTimes::latency, internal)
      .def_property_readonly("service", &RequestTimes::service, internal)
      .def_property_readonly("queued", &RequestTimes::queued, internal);
}

}  // namespace torchshare::bindings
