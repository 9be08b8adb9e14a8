#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "hook/op_context.h"

namespace torchshare::bindings {

/// A Python RLock around what torch keeps once for the whole process; jobs take turns at it. The thread that has the
/// turn passes the gate freely: if it were suspended, or had to wait for a higher job, every job that waits for its
/// turn would wait with it. Called with the interpreter lock, by any thread.
///
/// In C++, since a cancellation may land before any bytecode: there is none between taking the lock and noting it.
class Turns {
 public:
  /// Whoever gives a last turn back calls `before_release`.
  Turns(pybind11::object lock, pybind11::function before_release);
  Turns(const Turns&) = delete;  // a lock
  Turns& operator=(const Turns&) = delete;

  /// Waits for a turn; a thread may take several. A cancelled job unwinds instead. A thread that imports a module waits
  /// for a few seconds at most and then goes on without a turn: the one that has it may wait for the same module.
  void enter();
  void exit();
  /// Gives back what the thread still has: a cancellation came between a turn and the `with` that it was taken for.
  void exit_all();
  /// By another thread.
  bool is_held_elsewhere() const;
  /// In a forked child: the thread that had the turn is not there.
  void forget_others();

  /// The thread has a turn, at any.
  static bool is_had_by(unsigned long thread) { return thread == latest_owner_; }

 private:
  bool wait();

  pybind11::object lock_;
  pybind11::function before_release_;
  unsigned long owner_ = 0;
  static inline unsigned long latest_owner_ = 0;  // as owner_, of the process's latest Turns
  int depth_ = 0;                                 // of the owner's turns
  std::unique_ptr<Ungated> ungated_;
};

}  // namespace torchshare::bindings
