#include "bindings/turns.h"

#include <chrono>
#include <utility>
#include <vector>

#include "bindings/process_code.h"
#include "runtime/job.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

constexpr double kCheckS = 0.05;  // how often a waiting job checks for a cancel
constexpr std::chrono::seconds kImportWaits(3);

// Whether each `enter` of this thread took the lock.
thread_local std::vector<bool> taken;

bool is_importing() {
  return ProcessCode({"importlib._bootstrap", "_frozen_importlib"}, {}).is_run_here();
}

}  // namespace

Turns::Turns(py::object lock) : lock_(std::move(lock)) {}

bool Turns::wait() {
  if (lock_.attr("acquire")(false).cast<bool>()) {
    return true;
  }
  OpContext* const job = current_context;
  const bool imports = is_importing();
  const auto begin = std::chrono::steady_clock::now();
  while (!lock_.attr("acquire")(true, job == nullptr && !imports ? -1 : kCheckS).cast<bool>()) {
    if (job != nullptr) {
      job->yield_point();
    }
    if (imports && std::chrono::steady_clock::now() - begin > kImportWaits) {
      return false;
    }
  }
  return true;
}

void Turns::enter() {
  taken.push_back(wait());
  if (taken.back() && ++depth_ == 1) {
    set_owner(PyThread_get_thread_ident());
    ungated_ = std::make_unique<Ungated>();
  }
}

void Turns::exit() {
  const bool was_taken = taken.back();
  taken.pop_back();
  if (!was_taken) {
    return;
  }
  std::unique_ptr<Ungated> ungated;
  if (--depth_ == 0) {
    set_owner(0);
    ungated = std::move(ungated_);
  }
  lock_.attr("release")();
}

void Turns::exit_all() {
  while (!taken.empty()) {
    exit();
  }
}

void Turns::set_owner(unsigned long thread) {
  owner_ = thread;
  latest_owner_ = thread;
}

bool Turns::call_if_free(const py::typing::Callable<py::object()>& function) {
  const py::object release = lock_.attr("release");
  if (!lock_.attr("acquire")(false).cast<bool>()) {
    return false;
  }
  try {
    function();
  } catch (...) {
    release();
    throw;
  }
  release();
  return true;
}

bool Turns::is_held_elsewhere() const {
  return owner_ != 0 && owner_ != PyThread_get_thread_ident();
}

void Turns::forget_others() {
  if (is_held_elsewhere()) {
    lock_.attr("_at_fork_reinit")();
    set_owner(0);
    depth_ = 0;
    (void)ungated_.release();  // its thread does not exist here
  }
}

}  // namespace torchshare::bindings
