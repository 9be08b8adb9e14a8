#include "cluster/gpus.h"

#include <fmt/format.h>

#include <stdexcept>

namespace torchshare {

Gpus::Gpus(int gpus, int per_node) : per_node_(per_node), free_(gpus) {
  if (gpus < 1 || per_node < 1 || gpus % per_node != 0) {
    throw std::invalid_argument(
        fmt::format("a cluster must have a positive number of whole nodes, got {} GPUs, {} per node", gpus, per_node));
  }
  slots_.assign(static_cast<std::size_t>(gpus), {kNobody, kNobody});
  usable_.assign(static_cast<std::size_t>(gpus), true);
  free_on_node_.assign(static_cast<std::size_t>(gpus / per_node), per_node);
  nodes_with_free_.resize(static_cast<std::size_t>(per_node) + 1);
  for (Node node = 0; node < gpus / per_node; ++node) {
    nodes_with_free_.back().insert(nodes_with_free_.back().end(), node);
  }
}

void Gpus::add_node() {
  nodes_with_free(0).insert(static_cast<Node>(free_on_node_.size()));
  free_on_node_.push_back(0);
  const std::size_t gpus = slots_.size() + static_cast<std::size_t>(per_node_);
  slots_.resize(gpus, {kNobody, kNobody});
  usable_.resize(gpus, false);
  away_ += per_node_;
}

void Gpus::set_usable(GpuId gpu, bool usable) {
  if (this->usable(gpu) != usable) {
    usable_[static_cast<std::size_t>(gpu)] = usable;
    count_free(gpu / per_node_, usable ? +1 : -1);
    away_ += usable ? -1 : +1;
  }
}

std::vector<GpuId> Gpus::pick_free(int count) const {
  std::vector<GpuId> picked;
  picked.reserve(static_cast<std::size_t>(count));
  const auto missing = [&] { return count - static_cast<int>(picked.size()); };
  const auto take_from = [&](Node node) {
    for (GpuId gpu = node * per_node_; gpu < (node + 1) * per_node_ && missing() > 0; ++gpu) {
      if (on(gpu)[0] == kNobody && usable(gpu)) {
        picked.push_back(gpu);
      }
    }
  };
  for (int most = per_node_; most > 0; --most) {
    for (const Node node : nodes_with_free(most)) {
      if (missing() > most) {
        take_from(node);
        continue;
      }
      int tightest = missing();
      while (tightest < most && nodes_with_free(tightest).empty()) {
        ++tightest;
      }
      take_from(tightest < most ? *nodes_with_free(tightest).begin() : node);
      return picked;
    }
  }
  return picked;
}

void Gpus::put(JobId job, GpuId gpu) {
  auto& slots = slots_[static_cast<std::size_t>(gpu)];
  if (slots[0] == kNobody) {
    slots[0] = job;
    count_free(gpu / per_node_, -1);
    ++half_free_;
  } else {
    slots[1] = job;
    --half_free_;
  }
}

void Gpus::remove(JobId job, GpuId gpu) {
  auto& slots = slots_[static_cast<std::size_t>(gpu)];
  if (slots[0] == job) {
    slots[0] = slots[1];
  }
  slots[1] = kNobody;
  if (slots[0] == kNobody) {
    count_free(gpu / per_node_, +1);
    --half_free_;
  } else {
    ++half_free_;
  }
}

void Gpus::count_free(Node node, int change) {
  int& free = free_on_node_[static_cast<std::size_t>(node)];
  nodes_with_free(free).erase(node);
  free += change;
  free_ += change;
  nodes_with_free(free).insert(node);
}

}  // namespace torchshare
