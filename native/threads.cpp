#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace glimpse {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 64;
constexpr int kPausesBeforeYield = 4096;

// Forks that lead to this process: threads made at another count are not here.
std::atomic<int> num_forks{0};
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1, std::memory_order_relaxed); });

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// A ticket is the number of a job and the next of its tasks, taken with a compare-and-swap so that
// a thread that comes late cannot take a task of a job it does not know.
struct ThreadPool::Workers {
  static constexpr std::uint32_t kClosed = UINT32_MAX;

  explicit Workers(int num_workers) : forks(num_forks.load()) {
    for (int i = 0; i < num_workers; ++i) threads.emplace_back([this] { work(); });
  }

  ~Workers() {
    is_stopping = true;
    announce(job() + 1, kClosed);
    for (std::thread& thread : threads) thread.join();
  }

  std::uint32_t job() const { return static_cast<std::uint32_t>(ticket.load() >> 32); }

  static std::uint64_t pack(std::uint32_t job, std::uint32_t task) {
    return std::uint64_t{job} << 32 | task;
  }

  void announce(std::uint32_t job, std::uint32_t task) {
    ticket.store(pack(job, task));
    if (num_asleep.load() == 0) return;
    { std::lock_guard lock(sleep_mutex); }
    wake.notify_all();
  }

  void run(std::uint32_t count, Call new_call, void* new_context) {
    const std::uint32_t next = job() + 1;
    ticket.store(pack(next, kClosed));  // nobody takes a task while the fields change
    call.store(new_call, std::memory_order_relaxed);
    context.store(new_context, std::memory_order_relaxed);
    num_tasks.store(count, std::memory_order_relaxed);
    num_left.store(count, std::memory_order_relaxed);
    announce(next, 0);
    take_tasks(next);
    for (int i = 0; num_left.load(std::memory_order_acquire) != 0; ++i) {
      if (i < kPausesBeforeYield) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void take_tasks(std::uint32_t number) {
    std::uint64_t seen = ticket.load();
    for (;;) {
      const auto task = static_cast<std::uint32_t>(seen);
      if (seen >> 32 != number || task >= num_tasks.load(std::memory_order_relaxed)) return;
      const Call known_call = call.load(std::memory_order_relaxed);
      void* const known_context = context.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen + 1)) continue;
      known_call(known_context, static_cast<int>(task));
      num_left.fetch_sub(1, std::memory_order_release);
      seen = ticket.load();
    }
  }

  void work() {
    std::uint32_t done = 0;
    while (!is_stopping.load()) {
      wait_for_other_than(done);
      const std::uint64_t seen = ticket.load();
      if (static_cast<std::uint32_t>(seen) == kClosed) {
        pause();
        continue;
      }
      done = static_cast<std::uint32_t>(seen >> 32);
      take_tasks(done);
    }
  }

  void wait_for_other_than(std::uint32_t done) {
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (job() != done) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() - start < kSpinTime);
    std::unique_lock lock(sleep_mutex);
    num_asleep.fetch_add(1);
    wake.wait(lock, [&] { return job() != done; });
    num_asleep.fetch_sub(1);
  }

  const int forks;
  std::vector<std::thread> threads;

  alignas(64) std::atomic<std::uint64_t> ticket{0};
  alignas(64) std::atomic<std::uint32_t> num_left{0};
  alignas(64) std::atomic<Call> call{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<std::uint32_t> num_tasks{0};

  std::atomic<bool> is_stopping{false};
  std::atomic<int> num_asleep{0};
  std::mutex sleep_mutex;
  std::condition_variable wake;
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument("threads=" + std::to_string(num_threads) + ": must be at least 1");
  }
}

ThreadPool::~ThreadPool() {
  // After a fork the threads are not here, and neither are the owners of the locks.
  if (workers_ && workers_->forks != num_forks.load()) (void)workers_.release();
}

ThreadPool::Workers& ThreadPool::workers() {
  if (workers_ && workers_->forks != num_forks.load()) (void)workers_.release();
  if (!workers_) workers_ = std::make_unique<Workers>(num_threads_ - 1);
  return *workers_;
}

void ThreadPool::run_erased(int num_tasks, Call call, void* context) {
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (int i = 0; i < num_tasks; ++i) call(context, i);
    return;
  }
  workers().run(static_cast<std::uint32_t>(num_tasks), call, context);
}

}  // namespace glimpse
