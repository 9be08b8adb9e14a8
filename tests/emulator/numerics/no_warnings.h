/// Torch's warnings go nowhere while this object lives, on this thread.
#pragma once

#include <c10/util/Exception.h>

namespace emulator {

class NoWarnings : c10::WarningHandler {
 public:
  NoWarnings() : guard_(this) {}

 private:
  void process(const c10::Warning&) override {}

  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace emulator
