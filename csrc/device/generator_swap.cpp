#include "device/generator_swap.h"

#include <ATen/Context.h>

namespace torchshare {
namespace {

thread_local bool is_swapped_here = false;

std::mutex& of_all_jobs() {
  static std::mutex mutex;  // guards the state of the devices' default generators
  return mutex;
}

}  // namespace

GeneratorSwap::GeneratorSwap(const at::Generator& generator)
    : lock_(of_all_jobs()),
      default_(at::globalContext().defaultGenerator(generator.device())),
      former_(default_.graphsafe_get_state()) {
  default_.graphsafe_set_state(generator);
  is_swapped_here = true;
}

GeneratorSwap::~GeneratorSwap() {
  is_swapped_here = false;
  default_.graphsafe_set_state(former_);
}

bool GeneratorSwap::is_swapped() {
  return is_swapped_here;
}

}  // namespace torchshare
