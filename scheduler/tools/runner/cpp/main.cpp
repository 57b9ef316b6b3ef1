// Runs the branches of one bundle's TFLite file at the same time, by the plan in plan.h.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "error.h"
#include "executor.h"
#include "files.h"
#include "options.h"
#include "plan.h"
#include "results.h"

namespace runner {
namespace {

void Print(const plan::Plan& plan, const Executor& executor, const std::vector<Inference>& inferences) {
  std::vector<double> whole;
  std::vector<std::vector<double>> steps(plan.step_count);
  for (const Inference& inference : inferences) {
    whole.push_back(static_cast<double>(inference.end - inference.start) / 1e6);
    for (const Span& span : inference.spans) steps[static_cast<size_t>(span.step)].push_back(static_cast<double>(span.end - span.start) / 1e6);
  }
  std::printf("%s, planned for %s: %.3f ms, the median of %zu inferences\n", plan.model, plan.device, Median(whole), whole.size());
  for (size_t step = 0; step < plan.step_count; ++step) {
    const std::string& queue = executor.machine().queue_name(executor.machine().queue_of(static_cast<int>(step)));
    std::printf("  %-24s %-16s %.3f ms\n", plan.steps[step].name, queue.c_str(), Median(steps[step]));
  }
  for (int step : executor.Partly()) std::printf("note: operators of %s stay on the CPU\n", plan.steps[step].name);
}

void Run(const Options& options, const plan::Plan& plan) {
  {
    const Mapping file(options.model);
    CheckBelongs(file, options.model, plan);
  }
  if (!options.out.empty()) MakeFolder(options.out);
  Executor executor(plan, options);
  for (size_t i = 0; i < plan.input_count; ++i) {
    const int tensor = plan.inputs[i];
    FillInput(plan.tensors[tensor], executor.memory(tensor), options.inputs.empty() ? std::string() : options.inputs[i]);
  }
  for (int i = 0; i < options.warmup; ++i) executor.Run();
  std::vector<Inference> inferences;
  for (int i = 0; i < options.repeat; ++i) inferences.push_back(executor.Run());
  if (!options.out.empty()) {
    for (size_t i = 0; i < plan.output_count; ++i) {
      const int tensor = plan.outputs[i];
      WriteFile(options.out + "/output_" + std::to_string(i) + ".npy", OutputBytes(plan.tensors[tensor], executor.memory(tensor)));
    }
    WriteFile(options.out + "/record.jsonl", RecordLines(plan, executor));
    WriteFile(options.out + "/trace.json", TraceJson(plan, executor, inferences));
    WriteFile(options.out + "/times.json", TimesJson(plan, options, executor, inferences));
  }
  Print(plan, executor, inferences);
}

}  // namespace
}  // namespace runner

int main(int count, char** arguments) {
  try {
    const runner::Options options = runner::ParseOptions(std::vector<std::string>(arguments + 1, arguments + count), plan::kPlan);
    if (options.help) {
      std::fputs(runner::Usage(plan::kPlan).c_str(), stdout);
    } else {
      runner::Run(options, plan::kPlan);
    }
    return runner::kDone;
  } catch (const runner::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return runner::kFailure;
  }
}
