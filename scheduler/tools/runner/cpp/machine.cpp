#include "machine.h"

#include <algorithm>

namespace runner {
namespace {

Instruction::Kind KindOf(plan::Dispatch dispatch) {
  switch (dispatch) {
    case plan::Dispatch::kAsync:
      return Instruction::Kind::kEnqueue;
    case plan::Dispatch::kBlocking:
      return Instruction::Kind::kSubmit;
    default:
      return Instruction::Kind::kRunInline;
  }
}

}  // namespace

Machine::Machine(const plan::Plan& plan) : plan_(plan), readers_(plan.tensor_count) {
  for (size_t i = 0; i < plan.processor_count; ++i) {
    queue_of_processor_.push_back(queues_.size());
    queues_.push_back(plan.processors[i].dispatch);
    names_.emplace_back(plan.processors[i].name);
  }
  if (queues_.empty() || queues_.back() != plan::Dispatch::kInline) {
    queues_.push_back(plan::Dispatch::kInline);  // the queue that joins and waits
    names_.emplace_back("calling thread");
  }
  running_.assign(queues_.size(), -1);
  for (size_t step = 0; step < plan.step_count; ++step) {
    std::set<int> tensors;
    for (size_t i = 0; i < plan.steps[step].read_count; ++i) tensors.insert(plan.steps[step].reads[i].tensor);
    for (int tensor : tensors) readers_[static_cast<size_t>(tensor)].push_back(static_cast<int>(step));
    waits_for_.push_back(static_cast<int>(tensors.size()));
  }
}

size_t Machine::queue_of(int step) const {
  const int processor = plan_.steps[step].processor;
  return processor < 0 ? caller() : queue_of_processor_[static_cast<size_t>(processor)];
}

std::vector<Instruction> Machine::InputReady() {
  missing_ = waits_for_;
  ready_.clear();
  left_ = plan_.step_count;
  failed_ = -1;
  for (size_t i = 0; i < plan_.input_count; ++i) Arrived(plan_.inputs[i]);
  return Advance();
}

std::vector<Instruction> Machine::StepDone(int step) {
  running_[queue_of(step)] = -1;
  --left_;
  for (size_t i = 0; i < plan_.steps[step].write_count; ++i) Arrived(plan_.steps[step].writes[i]);
  return Advance();
}

std::vector<Instruction> Machine::StepFailed(int step, const std::string& error) {
  running_[queue_of(step)] = -1;
  if (failed_ < 0) failed_ = step, error_ = error;
  return Advance();
}

std::vector<Instruction> Machine::Advance() {
  std::vector<Instruction> found;
  // The other processors get work before the calling thread, asynchronous ones first.
  for (plan::Dispatch kind : {plan::Dispatch::kAsync, plan::Dispatch::kBlocking, plan::Dispatch::kInline}) {
    for (size_t queue = 0; queue < queues_.size(); ++queue) {
      if (queues_[queue] != kind || running_[queue] >= 0) continue;
      const int step = Take(queue);
      if (step < 0) continue;
      running_[queue] = step;
      found.push_back({plan_.steps[step].processor < 0 ? Instruction::Kind::kJoin : KindOf(kind), step, queue, {}, {}});
    }
  }
  std::vector<std::pair<size_t, int>> running;
  for (size_t queue = 0; queue < running_.size(); ++queue) {
    if (running_[queue] >= 0) running.emplace_back(queue, running_[queue]);
  }
  if (running.empty()) {
    if (failed_ >= 0) {
      found.push_back({Instruction::Kind::kFail, failed_, 0, {}, error_});
    } else if (left_ == 0) {
      found.push_back({Instruction::Kind::kFinish, -1, 0, {}, {}});
    }
  } else if (running_[caller()] < 0) {
    found.push_back({Instruction::Kind::kWait, -1, caller(), running, {}});
  }
  return found;
}

// Takes the first ready step of a queue, joins first; -1 for none.
int Machine::Take(size_t queue) {
  if (failed_ >= 0) return -1;
  const auto own = [&](bool join) {
    return std::find_if(ready_.begin(), ready_.end(), [&](int step) {
      return (plan_.steps[step].processor < 0) == join && queue_of(step) == queue;
    });
  };
  auto found = own(true);
  if (found == ready_.end()) found = own(false);
  if (found == ready_.end()) return -1;
  const int step = *found;
  ready_.erase(found);
  return step;
}

void Machine::Arrived(int tensor) {
  for (int step : readers_[static_cast<size_t>(tensor)]) {
    if (--missing_[static_cast<size_t>(step)] == 0) ready_.insert(step);
  }
}

}  // namespace runner
