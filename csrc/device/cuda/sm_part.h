#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "device/cuda/driver.h"

namespace torchshare {

/// A part of a GPU's streaming multiprocessors, in a green context. Any thread.
///
/// Note [Parts of a GPU]
/// The driver splits the GPU once, into the smallest groups that it allows; a part is a set of groups, and the parts
/// that are in use at a time have no group in common. Green contexts are kept for as long as the process, as the
/// streams on them are (see Note [Streams are kept]), and a part with the same groups has the same context.
struct SmPart {
  CUgreenCtx context;
  int count;  ///< of multiprocessors

  using Held = std::shared_ptr<const SmPart>;
  /// A part with at least `count`; it is given back with the last copy. Throws std::invalid_argument if so many are not
  /// left.
  static Held take(c10::DeviceIndex device, int count);
};

}  // namespace torchshare
