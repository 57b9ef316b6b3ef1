// Results of a run: times, a timeline, a record of the state machine, outputs.
#ifndef NN_STRETCH_RUNNER_RESULTS_H_
#define NN_STRETCH_RUNNER_RESULTS_H_

#include <string>
#include <vector>

#include "executor.h"
#include "options.h"
#include "plan_types.h"

namespace runner {

// The median of numbers.
double Median(std::vector<double> numbers);

// times.json: milliseconds of each inference and of each step.
std::string TimesJson(const plan::Plan& plan, const Options& options, const Executor& executor, const std::vector<Inference>& inferences);

// trace.json: the Chrome trace event format, which ui.perfetto.dev opens; one thread per processor.
std::string TraceJson(const plan::Plan& plan, const Executor& executor, const std::vector<Inference>& inferences);

// record.jsonl: events and answers of one inference, which `scheduler.runtime.record.replay` can replay.
std::string RecordLines(const plan::Plan& plan, const Executor& executor);

// Copies an input file, or ones without a file, into a tensor's memory, channels last; throws Error if its shape differs.
void FillInput(const plan::Tensor& tensor, Memory& memory, const std::string& path);

// An output as a .npy file, channels first.
std::string OutputBytes(const plan::Tensor& tensor, const Memory& memory);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_RESULTS_H_
