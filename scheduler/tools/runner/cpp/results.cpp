#include "results.h"

#include <algorithm>
#include <cstdio>

#include "error.h"
#include "files.h"

namespace runner {
namespace {

// Maximum number of inferences in a timeline; more would only make the file slow to open.
constexpr size_t kTraced = 10;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", byte);
      quoted += code;
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string Fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.6f", value);
  return text;
}

std::string Numbers(const std::vector<double>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i > 0 ? "," : "") + Fixed(numbers[i]);
  return text + "]";
}

// Names of steps as the elements of a JSON list.
std::string Names(const plan::Plan& plan, const std::vector<int>& steps) {
  std::string text;
  for (int step : steps) text += (text.empty() ? "" : ",") + Quoted(plan.steps[step].name);
  return text;
}

double Ms(int64_t start, int64_t end) { return static_cast<double>(end - start) / 1e6; }

// Moves the channels of each image to the last axis, or from there to the second axis.
void Turn(const plan::Tensor& tensor, const float* from, float* to, bool last) {
  size_t pixels = 1;
  for (int i = 1; i + 1 < tensor.rank; ++i) pixels *= static_cast<size_t>(tensor.shape[i]);
  const size_t channels = static_cast<size_t>(tensor.shape[tensor.rank - 1]), image = pixels * channels;
  for (size_t n = 0; n < static_cast<size_t>(tensor.shape[0]); ++n) {
    for (size_t p = 0; p < pixels; ++p) {
      for (size_t c = 0; c < channels; ++c) {
        const size_t first = n * image + c * pixels + p, behind = n * image + p * channels + c;
        (last ? to[behind] : to[first]) = last ? from[first] : from[behind];
      }
    }
  }
}

// The shape of a tensor in .npy files.
std::vector<int64_t> OutsideShape(const plan::Tensor& tensor) {
  std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.rank);
  if (tensor.channels_last) std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
  return shape;
}

std::string Words(const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? "x" : "") + std::to_string(shape[i]);
  return text;
}

std::string StartJson(const plan::Plan& plan, const Machine& machine, const char* type, int step, size_t queue) {
  return std::string("{\"type\":\"") + type + "\",\"lane\":0,\"step\":" + Quoted(plan.steps[step].name) + ",\"queue\":" + Quoted(machine.queue_name(queue));
}

std::string InstructionJson(const plan::Plan& plan, const Machine& machine, const Instruction& given) {
  switch (given.kind) {
    case Instruction::Kind::kEnqueue:
      return StartJson(plan, machine, "Enqueue", given.step, given.queue) + "}";
    case Instruction::Kind::kSubmit:
      return StartJson(plan, machine, "Submit", given.step, given.queue) + "}";
    case Instruction::Kind::kRunInline:
      return StartJson(plan, machine, "RunInline", given.step, given.queue) + "}";
    case Instruction::Kind::kJoin:
      return StartJson(plan, machine, "Join", given.step, given.queue) + "}";
    case Instruction::Kind::kWait: {
      std::string running;
      for (const auto& [queue, step] : given.running) {
        running += (running.empty() ? "" : ",") + Quoted(machine.queue_name(queue)) + ":" + Quoted(plan.steps[step].name);
      }
      return "{\"type\":\"Wait\",\"running\":{" + running + "}}";
    }
    case Instruction::Kind::kFinish:
      return "{\"type\":\"Finish\",\"lane\":0}";
    default:
      return std::string("{\"type\":\"Fail\",\"lane\":0,\"step\":") + Quoted(plan.steps[given.step].name) + ",\"error\":" + Quoted(given.error) + "}";
  }
}

std::string EventJson(const plan::Plan& plan, const Machine& machine, const Recorded& told) {
  switch (told.event) {
    case Recorded::Event::kInputReady:
      return "{\"type\":\"InputReady\",\"lane\":0}";
    case Recorded::Event::kStepDone:
      return StartJson(plan, machine, "StepDone", told.step, told.queue) + "}";
    default:
      return StartJson(plan, machine, "StepFailed", told.step, told.queue) + ",\"error\":" + Quoted(told.error) + "}";
  }
}

}  // namespace

double Median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

std::string TimesJson(const plan::Plan& plan, const Options& options, const Executor& executor, const std::vector<Inference>& inferences) {
  std::vector<double> whole;
  std::vector<std::vector<double>> steps(plan.step_count);
  for (const Inference& inference : inferences) {
    whole.push_back(Ms(inference.start, inference.end));
    for (const Span& span : inference.spans) steps[static_cast<size_t>(span.step)].push_back(Ms(span.start, span.end));
  }
  std::string text = "{\"source\":\"measured\",\"model\":" + Quoted(plan.model) + ",\"device\":" + Quoted(plan.device) + ",\"sha256\":" + Quoted(plan.sha256) +
                     ",\"runs\":" + std::to_string(inferences.size()) + ",\"warmup\":" + std::to_string(options.warmup) +
                     ",\"together\":" + (options.together ? "true" : "false") + ",\"on_cpu\":[" + Names(plan, executor.Partly()) + "],\"median_ms\":" + Fixed(Median(whole)) + ",\"ms\":" + Numbers(whole) + ",\"steps\":{";
  for (size_t step = 0; step < plan.step_count; ++step) {
    text += (step > 0 ? "," : "") + Quoted(plan.steps[step].name) + ":{\"queue\":" +
            Quoted(executor.machine().queue_name(executor.machine().queue_of(static_cast<int>(step)))) + ",\"median_ms\":" + Fixed(Median(steps[step])) +
            ",\"ms\":" + Numbers(steps[step]) + "}";
  }
  return text + "}}\n";
}

std::string TraceJson(const plan::Plan& plan, const Executor& executor, const std::vector<Inference>& inferences) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"measured\"}}";
  const Machine& machine = executor.machine();
  for (size_t queue = 0; queue < machine.queue_count(); ++queue) {
    text += ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(queue + 1) + ",\"name\":\"thread_name\",\"args\":{\"name\":" + Quoted(machine.queue_name(queue)) + "}}";
  }
  for (size_t number = 0; number < std::min(kTraced, inferences.size()); ++number) {
    for (const Span& span : inferences[number].spans) {
      const bool join = plan.steps[span.step].processor < 0;
      text += ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":" + std::to_string(span.queue + 1) + ",\"name\":" + Quoted(plan.steps[span.step].name) +
              ",\"cat\":" + (join ? "\"join\"" : "\"subgraph\"") + ",\"ts\":" + Fixed(Ms(inferences.front().start, span.start) * 1e3) +
              ",\"dur\":" + Fixed(Ms(span.start, span.end) * 1e3) + ",\"args\":{\"queue\":" + Quoted(machine.queue_name(span.queue)) +
              ",\"inference\":" + std::to_string(number) + "}}";
    }
  }
  return text + "]}\n";
}

std::string RecordLines(const plan::Plan& plan, const Executor& executor) {
  std::string text = std::string(plan.opening) + "\n";
  for (const Recorded& told : executor.record()) {
    std::string answer;
    for (const Instruction& given : told.answer) answer += (answer.empty() ? "" : ",") + InstructionJson(plan, executor.machine(), given);
    text += "{\"type\":\"Line\",\"machine\":0,\"event\":" + EventJson(plan, executor.machine(), told) + ",\"instructions\":[" + answer + "]}\n";
  }
  return text;
}

void FillInput(const plan::Tensor& tensor, Memory& memory, const std::string& path) {
  if (path.empty()) {
    std::fill(memory.data(), memory.data() + memory.elements(), 1.0f);
    return;
  }
  const Array array = ReadNpy(path);
  const std::vector<int64_t> wanted = OutsideShape(tensor);
  if (array.shape != wanted) {
    throw Error(path + " has the shape " + Words(array.shape) + ", and input `" + tensor.name + "` has " + Words(wanted), kUsage);
  }
  if (tensor.channels_last) {
    Turn(tensor, array.data.data(), memory.data(), true);
  } else {
    std::copy(array.data.begin(), array.data.end(), memory.data());
  }
}

std::string OutputBytes(const plan::Tensor& tensor, const Memory& memory) {
  if (!tensor.channels_last) return NpyBytes(OutsideShape(tensor), memory.data(), memory.elements());
  std::vector<float> turned(memory.elements());
  Turn(tensor, memory.data(), turned.data(), false);
  return NpyBytes(OutsideShape(tensor), turned.data(), turned.size());
}

}  // namespace runner
