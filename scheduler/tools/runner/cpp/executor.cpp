#include "executor.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "error.h"

namespace runner {
namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Pins the calling thread, and the threads that it starts later.
void Pin(const std::vector<int>& cores, const std::string& processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(static_cast<unsigned>(core), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    throw Error("cannot pin the thread of `" + processor + "` to its cores: " + std::strerror(errno));
  }
}

}  // namespace

Executor::Executor(const plan::Plan& plan, const Options& options)
    : plan_(plan), options_(options), machine_(plan), environment_(options), steps_(plan.step_count) {
  for (size_t i = 0; i < plan.tensor_count; ++i) tensors_.push_back(std::make_unique<Memory>(Elements(plan.tensors[i])));
  for (size_t i = 0; i < plan.step_count; ++i) {
    const int meeting = plan.steps[i].meeting;
    if (meeting < 0) continue;
    meeting_sizes_.resize(std::max(meeting_sizes_.size(), static_cast<size_t>(meeting) + 1));
    ++meeting_sizes_[static_cast<size_t>(meeting)];
  }
  for (size_t queue = 0; queue < machine_.queue_count(); ++queue) queues_.push_back(std::make_unique<Queue>());
  compiling_ = machine_.queue_count();
  try {
    for (size_t queue = 0; queue < machine_.caller(); ++queue) threads_.emplace_back([this, queue] { Serve(queue); });
    Compile(machine_.caller());
    std::unique_lock<std::mutex> lock(mutex_);
    queues_[machine_.caller()]->wake.wait(lock, [this] { return compiling_ == 0; });
    if (!failure_.empty()) throw Error(failure_, failure_code_);
  } catch (...) {
    Stop();
    throw;
  }
}

Executor::~Executor() { Stop(); }

void Executor::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  for (const auto& queue : queues_) queue->wake.notify_all();
  met_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::vector<int> Executor::Partly() const {
  std::vector<int> found;
  for (size_t step = 0; step < steps_.size(); ++step) {
    if (!steps_[step]->fully_accelerated()) found.push_back(static_cast<int>(step));
  }
  return found;
}

// Compiles the steps of a queue, one queue at a time: LiteRT does not guarantee that models can be compiled in parallel.
void Executor::Compile(size_t queue) {
  std::string failure;
  int code = kFailure;
  try {
    const std::string& name = machine_.queue_name(queue);
    if (const auto cores = options_.cores.find(name); cores != options_.cores.end()) Pin(cores->second, name);
    const std::lock_guard<std::mutex> one(compile_mutex_);
    for (size_t step = 0; step < plan_.step_count; ++step) {
      if (machine_.queue_of(static_cast<int>(step)) != queue) continue;
      steps_[step] = std::make_unique<CompiledStep>(environment_.get(), plan_, static_cast<int>(step), options_, tensors_);
    }
  } catch (const Error& error) {
    failure = error.what(), code = error.code();
  } catch (const std::exception& error) {
    failure = std::string("cannot load the model: ") + error.what();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = failure, failure_code_ = code;
  --compiling_;
  queues_[machine_.caller()]->wake.notify_all();
}

void Executor::Serve(size_t queue) {
  Compile(queue);
  Queue& own = *queues_[queue];
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    own.wake.wait(lock, [&] { return own.step >= 0 || stopping_; });
    if (stopping_) return;
    Work(std::exchange(own.step, -1), queue, lock);
  }
}

Inference Executor::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  Queue& own = *queues_[machine_.caller()];
  record_.clear();
  inference_ = {};
  met_counts_.assign(meeting_sizes_.size(), 0);
  failure_.clear();
  finished_ = false;
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(options_.time_limit));
  inference_.start = Now();
  Report({Recorded::Event::kInputReady, -1, 0, {}, {}}, machine_.InputReady());
  while (!finished_) {
    if (!own.wake.wait_until(lock, deadline_, [&] { return own.step >= 0 || finished_; })) {
      // A thread that hangs in LiteRT cannot be ended, so the program ends.
      std::fprintf(stderr, "error: an inference did not end within %g s (--time-limit)\n", options_.time_limit);
      std::_Exit(kFailure);
    }
    if (!finished_) Work(std::exchange(own.step, -1), machine_.caller(), lock);
  }
  inference_.end = Now();
  if (!failure_.empty()) throw Error(failure_);
  return inference_;
}

// Runs a step without holding the lock, then reports to the machine; called by any thread.
void Executor::Work(int step, size_t queue, std::unique_lock<std::mutex>& lock) {
  Span span{step, queue, Now(), 0};
  std::string failure;
  if (options_.together && !Meet(step, lock)) failure = "the branches beside `" + std::string(plan_.steps[step].name) + "` did not begin with it";
  lock.unlock();
  try {
    if (failure.empty()) steps_[static_cast<size_t>(step)]->Run();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  span.end = Now();
  lock.lock();
  inference_.spans.push_back(span);
  if (failure.empty()) {
    Report({Recorded::Event::kStepDone, step, queue, {}, {}}, machine_.StepDone(step));
  } else {
    Report({Recorded::Event::kStepFailed, step, queue, failure, {}}, machine_.StepFailed(step, failure));
  }
}

// Records an event and hands the answer's work to the queues; the lock must be held.
void Executor::Report(Recorded event, std::vector<Instruction> answer) {
  for (const Instruction& instruction : answer) {
    switch (instruction.kind) {
      case Instruction::Kind::kWait:
        break;  // the calling thread waits whenever it has no step
      case Instruction::Kind::kFail:
        failure_ = instruction.error;
        [[fallthrough]];
      case Instruction::Kind::kFinish:
        finished_ = true;
        queues_[machine_.caller()]->wake.notify_one();
        break;
      default:
        queues_[instruction.queue]->step = instruction.step;
        queues_[instruction.queue]->wake.notify_one();
    }
  }
  event.answer = std::move(answer);
  record_.push_back(std::move(event));
}

// Waits until all branches that start together have begun; returns false if that exceeds the time limit.
bool Executor::Meet(int step, std::unique_lock<std::mutex>& lock) {
  const int meeting = plan_.steps[step].meeting;
  if (meeting < 0) return true;
  const size_t at = static_cast<size_t>(meeting);
  ++met_counts_[at];
  met_.notify_all();
  return met_.wait_until(lock, deadline_, [&] { return met_counts_[at] >= meeting_sizes_[at] || stopping_; });
}

}  // namespace runner
