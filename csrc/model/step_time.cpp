#include "model/step_time.h"

#include <cmath>

namespace torchshare {

Seconds StepTimeModel::step(double batch, int sub_batches) const {
  const double computation = alpha + beta * batch / sub_batches;
  const double last = communication == 0
                          ? computation
                          : std::pow(std::pow(computation, delta) + std::pow(communication, delta), 1 / delta);
  return (sub_batches - 1) * computation + last;
}

}  // namespace torchshare
