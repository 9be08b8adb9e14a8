#pragma once

#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>

#include "hook/op_context.h"

namespace torchshare::bindings {

/// A Python RLock around torch's process-wide state (tracing, compiling, forward AD); jobs take turns. The thread that
/// holds the lock is not gated: if it were suspended or waited for a higher job, every waiting job would wait with it.
/// Any thread, with the GIL.
///
/// This is C++ because Python may raise a cancellation before any bytecode; here no bytecode runs between acquiring the
/// lock and recording its owner.
class Turns {
 public:
  explicit Turns(pybind11::object lock);
  Turns(const Turns&) = delete;  // a lock
  Turns& operator=(const Turns&) = delete;

  /// Acquires the lock; reentrant. A cancelled job unwinds instead. A thread that is importing a module waits at most
  /// 3 s and then continues without the lock, because the owner may be waiting for that module.
  void enter();
  void exit();
  /// Releases what the thread still holds: a cancellation came between `enter` and the `with` block it was for.
  void exit_all();
  /// Calls `function` with the lock held; false, without the call, if another thread holds it.
  bool call_if_free(const pybind11::typing::Callable<pybind11::object()>& function);
  /// True if another thread holds the lock.
  bool is_held_elsewhere() const;
  /// In a forked child: releases the lock if a thread that was not forked holds it.
  void forget_others();

  /// Whether the thread holds the lock.
  static bool is_had_by(unsigned long thread) { return thread == latest_owner_; }

 private:
  bool wait();
  void set_owner(unsigned long thread);

  pybind11::object lock_;
  std::atomic<unsigned long> owner_ = 0;                       // written by the owner
  static inline std::atomic<unsigned long> latest_owner_ = 0;  // as owner_, of the process's latest Turns
  int depth_ = 0;                                              // of the owner's turns
  std::unique_ptr<Ungated> ungated_;
};

}  // namespace torchshare::bindings
