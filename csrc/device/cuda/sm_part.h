#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "device/cuda/driver.h"

namespace torchshare {

/// A part of a GPU's streaming multiprocessors, in a green context of its own. Any thread.
///
/// Note [Parts of a GPU]
/// The parts that are in use at a time are of one layout, in which no two have a multiprocessor in common. Each one is
/// split from what earlier ones have left, which takes a green context of its own, because the driver splits only a
/// context's resource. Green contexts are kept for as long as the process, as the streams on them are (see Note
/// [Streams are kept]): a part that a job has given back serves the next job that asks for as many. When no part is in
/// use, another layout may serve, or a new one that splits the whole GPU.
struct SmPart {
  CUgreenCtx context;
  int asked;  ///< by the job that it was split for
  int count;  ///< that the driver granted

  using Held = std::shared_ptr<const SmPart>;
  /// A part with at least `count`; it is given back with the last copy. Throws std::invalid_argument if so many
  /// are not left.
  static Held take(c10::DeviceIndex device, int count);
};

}  // namespace torchshare
