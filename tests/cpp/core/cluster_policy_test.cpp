#include "cluster/cluster_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "fakes/workloads.h"

namespace torchshare {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The contract of every policy in cluster_policies.cpp.
class ClusterPolicyContract : public ::testing::TestWithParam<std::string_view> {};

/// Checks that no GPU exceeds two jobs or its memory, that gangs are complete, counters correct, and work conserved.
class Auditor {
 public:
  explicit Auditor(const Cluster& cluster) : done_(cluster.jobs()), speed_(cluster.jobs()), restart_(cluster.jobs()) {}

  void look(const Cluster& cluster) {
    const Seconds passed = cluster.now() - last_;
    last_ = cluster.now();
    busy_ += passed * busy_gpus_;
    away_ += passed * cluster_away_;
    on_gpus_ += passed * jobs_on_gpus_;
    std::map<GpuId, std::vector<JobId>> on;
    std::size_t waiting = 0;
    for (JobId job = 0; job < cluster.jobs(); ++job) {
      const ClusterJob& entry = cluster.job(job);
      const Seconds restarting = std::min(restart_[job], passed);
      done_[job] += (passed - restarting) * speed_[job];
      speed_[job] = entry.speed;
      restart_[job] = entry.phase == JobPhase::kRunning ? entry.restart_left : 0;
      waiting += entry.phase == JobPhase::kWaiting ? 1 : 0;
      if (entry.phase != JobPhase::kRunning) {
        ASSERT_TRUE(entry.gpus.empty() && entry.speed == 0);
        continue;
      }
      ASSERT_EQ(std::ssize(entry.gpus), entry.asked.gpus) << "job " << job << " runs in part";
      // `restart_left` is as of `since`: an unchanged job has paid part of it.
      restart_[job] = std::max(0.0, restart_[job] - (cluster.now() - entry.since));
      for (const GpuId gpu : entry.gpus) {
        on[gpu].push_back(job);
      }
    }
    ASSERT_EQ(cluster.waiting().size(), waiting);
    cluster_away_ = 0;
    for (GpuId gpu = 0; gpu < cluster.gpus().count(); ++gpu) {
      ASSERT_TRUE(cluster.gpus().usable(gpu) || !on.contains(gpu)) << "GPU " << gpu << " is away";
      cluster_away_ += cluster.gpus().usable(gpu) ? 0 : 1;
    }
    busy_gpus_ = static_cast<int>(std::ssize(on));
    ASSERT_EQ(cluster.gpus().free(), cluster.gpus().count() - busy_gpus_ - cluster_away_);
    jobs_on_gpus_ = 0;
    int half_free = 0;
    std::map<JobId, std::set<JobId>> gangs_beside;
    for (const auto& [gpu, jobs] : on) {
      ASSERT_LE(jobs.size(), 2U) << "GPU " << gpu;
      jobs_on_gpus_ += static_cast<int>(std::ssize(jobs));
      half_free += jobs.size() == 1 ? 1 : 0;
      ASSERT_LE(memory(cluster, jobs), cluster.options().gpu_memory_gib * (1 + 1e-12)) << "GPU " << gpu;
      if (jobs.size() == 2) {
        ASSERT_NE(jobs[0], jobs[1]);
        ASSERT_TRUE(cluster.may_share(jobs[0], jobs[1]));
        ASSERT_LE(cluster.job(jobs[0]).speed, 1 / cluster.ratio(jobs[0], jobs[1]) + 1e-12);
        if (cluster.job(jobs[0]).asked.gpus > 1 && cluster.job(jobs[1]).asked.gpus > 1) {
          gangs_beside[jobs[0]].insert(jobs[1]);
          gangs_beside[jobs[1]].insert(jobs[0]);
        }
      }
    }
    for (const auto& [gang, others] : gangs_beside) {
      ASSERT_TRUE(others.size() == 1 || !cluster.options().one_gang_beside) << "gang " << gang;
    }
    ASSERT_EQ(cluster.gpus().half_free(), half_free);
  }

  Seconds done(JobId job) const { return done_[job]; }
  /// GPU-seconds with a job, away, and of all jobs.
  double busy() const { return busy_; }
  double away() const { return away_; }
  double on_gpus() const { return on_gpus_; }

 private:
  static double memory(const Cluster& cluster, const std::vector<JobId>& jobs) {
    double sum = 0;
    for (const JobId job : jobs) {
      const ClusterJob& entry = cluster.job(job);
      sum += entry.asked.memory_gib * entry.asked.split.memory(entry.sub_batches);
    }
    return sum;
  }

  Seconds last_ = 0;
  double busy_ = 0;
  double away_ = 0;
  double on_gpus_ = 0;
  int busy_gpus_ = 0;  // of the last look
  int cluster_away_ = 0;
  int jobs_on_gpus_ = 0;
  std::vector<double> done_;
  std::vector<double> speed_;
  std::vector<Seconds> restart_;
};

TEST_P(ClusterPolicyContract, ConservesGpusMemoryAndWorkOverAThousandWorkloads) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const ClusterOptions options{.gpus = 8,
                                 .gpus_per_node = 4,
                                 .gpu_memory_gib = 16,
                                 .restart_cost = static_cast<double>(seed % 3) * 10,
                                 .durations_known = seed % 4 != 0,
                                 .one_gang_beside = seed % 7 < 3};
    // Ratios from small to large, and a pair that never shares.
    const Interference interference(
        2, {1 + static_cast<double>(seed % 11) / 10, 1.3, 2.5, seed % 2 == 0 ? Interference::kNeverShares : 1.0});
    const std::vector<WorkloadJob> workload = random_workload(random, 25, options.gpus, 2);
    std::vector<Seconds> estimates = durations_of(workload);
    std::lognormal_distribution<double> error(0, seed % 5 == 0 ? 0.5 : 0);
    for (Seconds& estimate : estimates) {
      estimate *= error(random);
    }
    Simulator simulator(Cluster(options, interference, workload, estimates), make_cluster_policy(GetParam()));
    Auditor auditor(simulator.cluster());
    int steps = 0;
    while (simulator.step()) {
      auditor.look(simulator.cluster());
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
      ASSERT_LT(++steps, 100'000) << "seed " << seed << " goes on for ever";
    }
    for (JobId job = 0; job < workload.size(); ++job) {
      const ClusterJob& entry = simulator.cluster().job(job);
      ASSERT_EQ(entry.phase, JobPhase::kEnded) << "seed " << seed;
      ASSERT_NEAR(auditor.done(job), workload[job].duration, 1e-6 * workload[job].duration) << "seed " << seed;
      ASSERT_NEAR(entry.waited + entry.run, entry.ended - workload[job].arrival, 1e-6) << "seed " << seed;
    }
  }
}

TEST_P(ClusterPolicyContract, DespiteFailuresEveryJobEndsOnceAndStartsAfterItsPredecessors) {
  int losses = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const ClusterOptions options{.gpus = 8,
                                 .gpu_memory_gib = 16,
                                 .restart_cost = static_cast<double>(seed % 3) * 10,
                                 .checkpoint_every = seed % 4 == 0 ? kNeverVirtual : 20.0 + seed % 50,
                                 .record_spans = true};
    const std::vector<WorkloadJob> workload = random_workload(random, 25, options.gpus, 1);
    const Predecessors after = random_predecessors(random, workload.size());
    const Interference interference(1 + static_cast<double>(seed % 11) / 10);
    const Failures failures(
        {.between = seed % 4 == 0 ? 50'000.0 : 300.0 + seed, .repair = 100, .node_share = 0.3, .seed = seed},
        options.gpus, options.gpus_per_node);
    Simulator simulator(Cluster(options, interference, workload, durations_of(workload)),
                        make_cluster_policy(GetParam()), {.after = after, .failures = failures});
    Auditor auditor(simulator.cluster());
    while (simulator.step()) {
      auditor.look(simulator.cluster());
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    }
    const double all = simulator.cluster().gpus().count() * simulator.cluster().now();
    ASSERT_NEAR(simulator.busy_gpu_seconds(), auditor.busy(), 1e-9 * all);
    ASSERT_NEAR(simulator.away_gpu_seconds(), auditor.away(), 1e-9 * all);
    double on_gpus = 0;
    std::vector<Seconds> started(workload.size(), kNeverVirtual);
    for (const Span& span : simulator.cluster().spans()) {
      started[span.job] = std::min(started[span.job], span.begin);
    }
    for (JobId job = 0; job < workload.size(); ++job) {
      const ClusterJob& entry = simulator.cluster().job(job);
      ASSERT_EQ(entry.phase, JobPhase::kEnded) << "seed " << seed;
      ASSERT_NEAR(auditor.done(job), workload[job].duration + entry.lost_work, 1e-6 * auditor.done(job))
          << "seed " << seed;
      ASSERT_LE(entry.losses, entry.preemptions);
      losses += entry.losses;
      on_gpus += entry.run * entry.asked.gpus;
      Seconds eligible = workload[job].arrival;
      for (const JobId other : after[job]) {
        eligible = std::max(eligible, simulator.cluster().job(other).ended);
      }
      ASSERT_EQ(entry.eligible, eligible) << "seed " << seed;
      ASSERT_GE(started[job], eligible) << "seed " << seed;
      ASSERT_NEAR(entry.waited + entry.run, entry.ended - eligible, 1e-6) << "seed " << seed;
    }
    ASSERT_NEAR(on_gpus, auditor.on_gpus(), 1e-9 * all) << "seed " << seed;
  }
  EXPECT_GT(losses, 1000);
}

TEST_P(ClusterPolicyContract, EqualInputGivesEqualOutput) {
  std::mt19937_64 random(3);
  const std::vector<WorkloadJob> workload = random_workload(random, 200, 16, 1);
  const ClusterOptions options{.gpus = 16};
  const auto once = ends_of(GetParam(), options, Interference(1.2), workload);
  EXPECT_EQ(once, ends_of(GetParam(), options, Interference(1.2), workload));
}

TEST_P(ClusterPolicyContract, AJobAloneTakesItsDuration) {
  EXPECT_THAT(ends_of(GetParam(), {}, Interference(2), {{5, 100, 48, 0, 0}}), ElementsAre(105));
}

TEST_P(ClusterPolicyContract, JobsThatAllFitDoNotMeet) {
  const std::vector<WorkloadJob> workload{{0, 100, 32, 0, 0}, {0, 50, 16, 0, 0}, {10, 70, 16, 0, 0}};
  const auto ends = ends_of(GetParam(), {}, Interference(1.1), workload);
  EXPECT_EQ(ends[0], 100);
  EXPECT_EQ(ends[1], 50);
  EXPECT_LE(ends[2], GetParam() == "tiresias" ? 60 + 70 : 80) << "Tiresias decides in rounds of 60 s";
}

INSTANTIATE_TEST_SUITE_P(All, ClusterPolicyContract, ::testing::ValuesIn(cluster_policy_names()), [](const auto& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// One GPU; restarts cost nothing unless a test sets a cost.
ClusterOptions one_gpu(Seconds restart_cost = 0) {
  return {.gpus = 1, .gpus_per_node = 1, .restart_cost = restart_cost};
}

TEST(ClusterPolicies, FifoLetsNoJobOvertake) {
  const ClusterOptions options{.gpus = 4};
  const std::vector<WorkloadJob> workload{{0, 100, 3, 0, 0}, {1, 100, 2, 0, 0}, {2, 10, 1, 0, 0}};
  EXPECT_THAT(ends_of("fifo", options, Interference(1), workload), ElementsAre(100, 200, 110));
  EXPECT_THAT(ends_of("sjf", options, Interference(1), workload), ElementsAre(100, 200, 12));
}

TEST(ClusterPolicies, BackfillOvertakesOnlyWithoutDelayingTheFirst) {
  const ClusterOptions options{.gpus = 4};
  // 4 GPUs are reserved for the second at 100. The third ends by then and may overtake; the fourth would not, and
  // waits.
  const std::vector<WorkloadJob> workload{{0, 100, 3, 0, 0}, {1, 50, 4, 0, 0}, {2, 90, 1, 0, 0}, {3, 200, 1, 0, 0}};
  EXPECT_THAT(ends_of("fifo-backfill", options, Interference(1), workload), ElementsAre(100, 150, 92, 350));
  // With a spare GPU at 100, the long job overtakes as well.
  const std::vector<WorkloadJob> spare{{0, 100, 3, 0, 0}, {1, 50, 3, 0, 0}, {3, 200, 1, 0, 0}};
  EXPECT_THAT(ends_of("fifo-backfill", options, Interference(1), spare), ElementsAre(100, 150, 203));
}

TEST(ClusterPolicies, SrtfOnOneGpuIsTheBestWithoutSharing) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<WorkloadJob> workload = random_workload(random, 20, 1, 1);
    std::map<std::string_view, double> sum;
    for (const std::string_view policy : {"srtf", "srsf", "fifo", "fifo-backfill", "sjf", "tiresias"}) {
      for (const Seconds end : ends_of(policy, one_gpu(), Interference(2), workload)) {
        sum[policy] += end;
      }
    }
    for (const auto& [policy, total] : sum) {
      EXPECT_GE(total, sum["srtf"] * (1 - 1e-12)) << policy << ", seed " << seed;
    }
    EXPECT_DOUBLE_EQ(sum["srsf"], sum["srtf"]);
  }
}

TEST(ClusterPolicies, TiresiasSuspendsAJobOfTheSecondQueueAtARound) {
  // The first exceeds 57,600 GPU-seconds at 57,600; the second, which came later, precedes it from that round on.
  const std::vector<WorkloadJob> workload{{0, 60'000, 1, 0, 0}, {50'000, 1'000, 1, 0, 0}};
  EXPECT_THAT(ends_of("tiresias", one_gpu(), Interference(1), workload), ElementsAre(61'000, 58'600));
  EXPECT_THAT(ends_of("tiresias", one_gpu(10), Interference(1), workload), ElementsAre(61'010, 58'600));
}

TEST(ClusterPolicies, SjfFfsSharesWithTheFirstGpusThatHaveRoom) {
  const ClusterOptions options{.gpus = 2, .gpus_per_node = 2};
  const std::vector<WorkloadJob> workload{{0, 100, 1, 0, 0}, {0, 300, 1, 0, 0}, {1, 10, 1, 0, 0}};
  // Beside the shorter job on GPU 0, regardless of the ratio.
  EXPECT_THAT(ends_of("sjf-ffs", options, Interference(2), workload), ElementsAre(110, 300, 21));
}

TEST(ClusterPolicies, SjfBsbfSharesIfThePairGainsAndElseWaits) {
  const std::vector<WorkloadJob> workload{{0, 100, 1, 0, 0}, {0, 100, 1, 0, 0}};
  EXPECT_THAT(ends_of("sjf-bsbf", one_gpu(), Interference(1.4), workload), ElementsAre(140, 140));
  EXPECT_THAT(ends_of("sjf-bsbf", one_gpu(), Interference(1.6), workload), ElementsAre(100, 200));
  // A short new job gains by sharing even at 1.6, because the policy cannot suspend the long one.
  EXPECT_THAT(ends_of("sjf-bsbf", one_gpu(), Interference(1.6), {{0, 100, 1, 0, 0}, {10, 10, 1, 0, 0}}),
              ElementsAre(106, 26));
}

TEST(ClusterPolicies, SjfBsbfTakesThePartnerOfTheBestPair) {
  const ClusterOptions options{.gpus = 2, .gpus_per_node = 2};
  // The pair with the job that ends sooner has the lower average.
  const std::vector<WorkloadJob> workload{{0, 300, 1, 0, 0}, {0, 100, 1, 0, 0}, {1, 500, 1, 0, 0}};
  const auto ends = ends_of("sjf-bsbf", options, Interference(1.25), workload);
  EXPECT_EQ(ends[0], 300);
  EXPECT_DOUBLE_EQ(ends[1], 1 + 99 * 1.25);
}

/// A job of at most 16 GiB that arrives at 0.
WorkloadJob random_job(std::mt19937_64& random) {
  std::uniform_real_distribution<double> duration(10, 100);
  std::uniform_real_distribution<double> memory(4, 16);
  std::uniform_real_distribution<double> share(0, 0.3);
  return {.duration = duration(random),
          .memory_gib = memory(random),
          .split = {.fixed_memory = share(random), .fixed_time = share(random), .most = 1 << random() % 4}};
}

/// The least average end of two jobs that share a GPU of 16 GiB from now on, over all their sub-batches; infinite if
/// none fit.
double best_shared(const WorkloadJob& a, double a_left, const WorkloadJob& b, double b_left, double ratio) {
  double best = kNeverVirtual;
  for (int i = 1; i <= a.split.most; i *= 2) {
    for (int j = 1; j <= b.split.most; j *= 2) {
      const auto memory = [](const WorkloadJob& job, int pieces) {
        return job.memory_gib * (job.split.fixed_memory + (1 - job.split.fixed_memory) / pieces);
      };
      const double a_slow = ratio * (1 + (i - 1) * a.split.fixed_time);
      const double b_slow = ratio * (1 + (j - 1) * b.split.fixed_time);
      const double first = std::min(a_left * a_slow, b_left * b_slow);
      const double rest = std::max(a_left - first / a_slow, b_left - first / b_slow);
      if (memory(a, i) + memory(b, j) <= 16) {
        best = std::min(best, first + rest / 2);
      }
    }
  }
  return best;
}

TEST(ClusterPolicies, PairsRunInTheBestOfAllTheirSubBatches) {
  const ClusterOptions options{.gpus = 1, .gpus_per_node = 1, .gpu_memory_gib = 16, .restart_cost = 0};
  int shared = 0;
  int apart = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const double ratio = std::uniform_real_distribution<double>(1, 1.8)(random);
    const std::vector<WorkloadJob> workload{random_job(random), random_job(random)};
    const double together = best_shared(workload[0], workload[0].duration, workload[1], workload[1].duration, ratio);
    const auto [shorter, longer] = std::minmax(workload[0].duration, workload[1].duration);
    const double in_turn = shorter + longer / 2;
    for (const std::string_view policy : {"sjf-bsbf", "pair-srsf"}) {
      const auto ends = ends_of(policy, options, Interference(ratio), workload);
      EXPECT_NEAR((ends[0] + ends[1]) / 2, std::min(together, in_turn), 1e-9) << policy << ", seed " << seed;
    }
    const auto ends = ends_of("sjf-ffs", options, Interference(ratio), workload);
    EXPECT_NEAR((ends[0] + ends[1]) / 2, together < kNeverVirtual ? together : in_turn, 1e-9) << "seed " << seed;
    (together < in_turn ? shared : apart) += 1;
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(apart, 100);
}

TEST(ClusterPolicies, SjfBsbfTakesTheBestOfAllPartnersAndSubBatches) {
  constexpr int kGpus = 3;
  const ClusterOptions options{.gpus = kGpus, .gpus_per_node = kGpus, .gpu_memory_gib = 16};
  int shared = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const double ratio = std::uniform_real_distribution<double>(1, 1.5)(random);
    std::vector<WorkloadJob> workload;
    for (int i = 0; i <= kGpus; ++i) {
      workload.push_back(random_job(random));
    }
    WorkloadJob& last = workload.back();
    last.arrival = 5;
    double least = kNeverVirtual;
    std::optional<JobId> best;
    for (JobId job = 0; job < kGpus; ++job) {
      const double left = workload[job].duration - last.arrival;
      const double value = best_shared(last, last.duration, workload[job], left, ratio);
      if (value < std::min(least, left + last.duration / 2)) {
        least = value;
        best = job;
      }
    }
    Simulator simulator = simulator_of("sjf-bsbf", options, Interference(ratio), workload);
    while (simulator.cluster().now() < last.arrival && simulator.step()) {
    }
    const ClusterJob& started = simulator.cluster().job(kGpus);
    ASSERT_EQ(started.phase == JobPhase::kRunning, best.has_value()) << "seed " << seed;
    if (best) {
      ++shared;
      const ClusterJob& partner = simulator.cluster().job(*best);
      EXPECT_EQ(started.gpus, partner.gpus) << "seed " << seed;
      const double first = std::min(last.duration / started.speed, partner.work_left / partner.speed);
      const double rest = std::max(last.duration - first * started.speed, partner.work_left - first * partner.speed);
      EXPECT_NEAR(first + rest / 2, least, 1e-9) << "seed " << seed;
    }
  }
  EXPECT_GT(shared, 100);
  EXPECT_LT(shared, 450);
}

TEST(ClusterPolicies, ShortestFirstDecidesAsIfItConsideredEveryJob) {
  // A refusal rules out no job of another model: with a model for each job, all are considered.
  constexpr int kJobs = 60;
  const ClusterOptions options{.gpus = 8, .gpu_memory_gib = 16};
  int others = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const double ratio = std::uniform_real_distribution<double>(1, 2)(random);
    std::vector<WorkloadJob> workload = random_workload(random, kJobs, options.gpus, 1);
    for (WorkloadJob& job : workload) {
      const WorkloadJob drawn = random_job(random);
      job.memory_gib = drawn.memory_gib;
      job.split = drawn.split;
    }
    std::vector<WorkloadJob> alike = workload;
    for (int job = 0; job < kJobs; ++job) {
      workload[static_cast<JobId>(job)].model = job;
    }
    const Interference each(kJobs, std::vector<double>(kJobs * kJobs, ratio));
    for (const std::string_view policy : {"sjf", "sjf-ffs", "sjf-bsbf"}) {
      EXPECT_EQ(ends_of(policy, options, Interference(ratio), alike), ends_of(policy, options, each, workload))
          << policy << ", seed " << seed;
    }
    const auto pair_srsf = [&](const Interference& interference, const std::vector<WorkloadJob>& jobs) {
      return ends_of("pair-srsf", options, interference, jobs);
    };
    others += pair_srsf(Interference(ratio), alike) == pair_srsf(each, workload) ? 0 : 1;
  }
  EXPECT_LE(others, 13);  // PairSrsf ages jobs, and shares for the sake of the backlog: see WaitingQueue
}

TEST(ClusterPolicies, PairSrsfTakesTheBestOfSharingAndEitherOrder) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> duration(10, 100);
    std::uniform_real_distribution<double> ratio(1, 2);
    const double xi = ratio(random);
    const std::vector<WorkloadJob> workload{{0, duration(random), 1, 0, 0}, {0, duration(random), 1, 0, 0}};
    const auto [shorter, longer] = std::minmax(workload[0].duration, workload[1].duration);
    const double shared = (xi * shorter + longer + (xi - 1) * shorter) / 2;
    const double in_turn = shorter + longer / 2;
    const auto ends = ends_of("pair-srsf", one_gpu(), Interference(xi), workload);
    EXPECT_NEAR((ends[0] + ends[1]) / 2, std::min(shared, in_turn), 1e-9) << "seed " << seed;
  }
}

TEST(ClusterPolicies, PairSrsfSharesAtAHigherRatioTheMoreJobsWait) {
  for (const int gpus : {1, 4}) {
    for (int others = 0; others < 8; ++others) {
      const double backlog = static_cast<double>(others) / gpus;
      const double limit = (6 + 2 * backlog) / (4 + backlog);
      for (const double ratio : {limit - 1e-6, limit + 1e-6}) {
        std::vector<WorkloadJob> workload(static_cast<std::size_t>(gpus) + 1, {0, 100, 1, 0, 0});
        workload.insert(workload.end(), static_cast<std::size_t>(others), {0, 1000, 1, 0, 0});
        const ClusterOptions options{.gpus = gpus, .gpus_per_node = gpus};
        Simulator simulator = simulator_of("pair-srsf", options, Interference(ratio), workload);
        simulator.step();
        const bool shares = simulator.cluster().job(static_cast<JobId>(gpus)).phase == JobPhase::kRunning;
        EXPECT_EQ(shares, ratio < limit) << gpus << " GPUs, " << others << " others wait, ratio " << ratio;
      }
    }
  }
}

TEST(ClusterPolicies, PairSrsfSuspendsALongJobForAShortOneWhenSharingDoesNotPay) {
  EXPECT_THAT(ends_of("pair-srsf", one_gpu(10), Interference(1.8), {{0, 100, 1, 0, 0}, {10, 10, 1, 0, 0}}),
              ElementsAre(120, 20));
}

TEST(ClusterPolicies, PairSrsfMovesASharingJobToFreeGpusWhenThatPays) {
  const ClusterOptions options{.gpus = 2, .gpus_per_node = 2, .restart_cost = 10};
  const std::vector<WorkloadJob> workload{{0, 1000, 1, 0, 0}, {0, 50, 1, 0, 0}, {0, 1000, 1, 0, 0}};
  const auto ends = ends_of("pair-srsf", options, Interference(1.2), workload);
  EXPECT_LT(std::max(ends[0], ends[2]), 1100) << "sharing to the end would take 1,200 s";
}

TEST(ClusterPolicies, PairSrsfAgesSoThatABigJobIsNotOvertakenForever) {
  // Two jobs of 8 x 8 GPU-seconds arrive every 8 s: a full load on 16 GPUs, each shorter than the big one.
  const ClusterOptions options{.gpus = 16, .restart_cost = 0};
  std::vector<WorkloadJob> workload{{0, 10, 16, 0, 0}};
  for (int i = 0; i < 4000; ++i) {
    workload.push_back({i * 8.0, 8, 8, 0, 0});
    workload.push_back({i * 8.0, 8, 8, 0, 0});
  }
  const auto big_ends = [&](std::string_view policy) { return ends_of(policy, options, Interference(2), workload)[0]; };
  // 160 GPU-seconds less 64 of a small job, at 16 / 1024 of them per second: not overtaken after 6,144 s.
  EXPECT_LT(big_ends("pair-srsf"), 6144 + 200);
  EXPECT_GT(big_ends("srsf"), 30'000) << "without aging it waits for the last";
}

TEST(ClusterPolicies, AGangSharesWithTheFirstGangThatHasEnoughGpus) {
  const ClusterOptions options{.gpus = 4, .one_gang_beside = true};
  // The third job leaves the first gang one GPU to share, the second gang has two.
  const std::vector<WorkloadJob> workload{{0, 100, 2, 0, 0}, {0, 100, 2, 0, 0}, {1, 50, 1, 0, 0}, {2, 10, 2, 0, 0}};
  EXPECT_THAT(ends_of("sjf-ffs", options, Interference(1), workload), ElementsAre(100, 100, 51, 12));
}

TEST(ClusterPolicies, PairSrsfMakesRoomForAGangBesideOneOfTwoGangs) {
  const ClusterOptions options{.gpus = 8, .restart_cost = 0, .one_gang_beside = true};
  constexpr double kNever = Interference::kNeverShares;
  std::vector<WorkloadJob> workload{{0, 5000, 2, 0, 0}, {0, 5000, 2, 0, 0}, {1, 3000, 4, 0, 0}};
  for (int single = 0; single < 4; ++single) {
    workload.push_back({0, 100'000, 1, 0, 1});
  }
  const auto ends = ends_of("pair-srsf", options, Interference(2, {1.1, kNever, kNever, kNever}), workload);
  EXPECT_DOUBLE_EQ(ends[2], 1 + 3000 * 1.1) << "two of its GPUs are those of single jobs";
}

TEST(ClusterPolicies, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(
      [] { make_cluster_policy("best"); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("cluster policy must be one of fifo, fifo-backfill, sjf")));
}

}  // namespace
}  // namespace torchshare
