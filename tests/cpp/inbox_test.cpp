#include "runtime/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <utility>
#include <vector>

namespace torchshare {
namespace {

template <class Item>
std::vector<Item> drained(Inbox<Item>& inbox) {
  std::vector<Item> items;
  inbox.drain([&](const Item& item) { items.push_back(item); });
  return items;
}

TEST(Inbox, GivesWhatWasPutInOrderAndOnce) {
  Inbox<int> inbox;
  inbox.put(1);
  inbox.put(2);
  inbox.put(3);
  EXPECT_THAT(drained(inbox), ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(drained(inbox), ::testing::IsEmpty());
}

TEST(Inbox, LosesNothingAndKeepsTheOrderOfEachThread) {
  constexpr int kThreads = 4;
  constexpr int kItems = 20'000;
  Inbox<std::pair<int, int>> inbox;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int item = 0; item < kItems; ++item) {
        inbox.put({thread, item});
      }
    });
  }
  std::array<int, kThreads> next{};
  for (int taken = 0; taken < kThreads * kItems;) {
    for (const auto& [thread, item] : drained(inbox)) {
      EXPECT_EQ(item, next[static_cast<std::size_t>(thread)]++);
      ++taken;
    }
  }
}

}  // namespace
}  // namespace torchshare
