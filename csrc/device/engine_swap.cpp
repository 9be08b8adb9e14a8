#include "device/engine_swap.h"

#include <ATen/Context.h>

namespace torchshare {
namespace {

thread_local bool is_swapped_here = false;

std::mutex& of_all_jobs() {
  static std::mutex mutex;  // guards the state of the devices' default engines
  return mutex;
}

}  // namespace

EngineSwap::EngineSwap(const at::Generator& engine)
    : lock_(of_all_jobs()),
      default_(at::globalContext().defaultGenerator(engine.device())),
      former_(default_.graphsafe_get_state()) {
  default_.graphsafe_set_state(engine);
  is_swapped_here = true;
}

EngineSwap::~EngineSwap() {
  is_swapped_here = false;
  default_.graphsafe_set_state(former_);
}

bool EngineSwap::is_swapped() {
  return is_swapped_here;
}

}  // namespace torchshare
