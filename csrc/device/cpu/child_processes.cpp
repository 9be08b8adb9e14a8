#include "device/cpu/child_processes.h"

#include <dirent.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

namespace torchshare {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

std::vector<std::string> children_of(const std::string& process, const std::string& thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", process, thread));
  std::vector<std::string> children;
  for (std::string child; file >> child;) {
    children.push_back(child);
  }
  return children;
}

void visit_process(const std::string& process, const std::function<void(int)>& visit) {
  for_each_thread(process, [&](const std::string& thread) {
    visit(std::stoi(thread));  // first: a process that it starts now inherits what `visit` sets
    for (const std::string& child : children_of(process, thread)) {
      visit_process(child, visit);
    }
  });
}

}  // namespace

std::string name_of_thread(const std::string& process, const std::string& thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/comm", process, thread));
  std::string name;
  std::getline(file, name);
  return name;
}

std::optional<SchedulerTimes> scheduler_times(const std::string& thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/schedstat", thread));
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  if (!(file >> ran >> waited)) {
    return std::nullopt;
  }
  return SchedulerTimes{std::chrono::nanoseconds(ran), std::chrono::nanoseconds(waited)};
}

void for_each_thread(const std::string& process, const std::function<void(const std::string&)>& visit) {
  // Not std::filesystem, which ends the process if it finds no memory.
  const std::unique_ptr<DIR, CloseFolder> threads(opendir(fmt::format("/proc/{}/task", process).c_str()));
  while (const dirent* const entry = threads != nullptr ? readdir(threads.get()) : nullptr) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) {
      visit(entry->d_name);
    }
  }
}

bool has_children(const std::string& thread) {
  return !children_of("self", thread).empty();
}

void for_each_thread_of_children(const std::string& thread, const std::function<void(int)>& visit) {
  for (const std::string& child : children_of("self", thread)) {
    visit_process(child, visit);
  }
}

void for_each_thread_of_orphans(const std::string& name, const std::function<void(int)>& visit) {
  for_each_thread("self", [&](const std::string& thread) {
    if (name_of_thread("self", thread) == name) {
      return;  // its children are no orphans
    }
    for (const std::string& child : children_of("self", thread)) {
      if (name_of_thread(child, child) == name) {
        visit_process(child, visit);
      }
    }
  });
}

}  // namespace torchshare
