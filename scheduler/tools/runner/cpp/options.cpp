#include "options.h"

#include <cstdlib>
#include <functional>

#include "error.h"
#include "litert_api.h"

namespace runner {
namespace {

#ifdef RUNNER_ACCELERATORS
constexpr bool kAccelerators = true;
#else
constexpr bool kAccelerators = false;
#endif

constexpr int kMaxCore = 1023;

Error Wrong(const std::string& sentence) { return Error(sentence + " (--help lists the options)", kUsage); }

int Number(const std::string& option, const std::string& text, int least, int most) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) {
    throw Wrong(option + " takes a whole number from " + std::to_string(least) + " to " + std::to_string(most) + ", not `" + text + "`");
  }
  return static_cast<int>(value);
}

double Seconds(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0) || value > 1e6) throw Wrong(option + " takes seconds, not `" + text + "`");
  return value;
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Parses cores such as `0+4-6`.
std::vector<int> Cores(const std::string& text) {
  std::vector<int> cores;
  for (const std::string& part : Split(text, '+')) {
    const std::vector<std::string> ends = Split(part, '-');
    if (ends.size() > 2) throw Wrong("--cores has `" + part + "`, which is no core and no range of cores");
    const int first = Number("--cores", ends.front(), 0, kMaxCore), last = Number("--cores", ends.back(), first, kMaxCore);
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

int Accelerator(const std::string& name) {
  if (name == "cpu") return kLiteRtHwAcceleratorCpu;
  if (name != "gpu" && name != "npu") throw Wrong("--accelerator knows cpu, gpu and npu, not `" + name + "`");
  if (!kAccelerators) {
    throw Error("this runner was built for the CPU alone; configure it with -DRUNNER_ACCELERATORS=ON for `" + name + "`", kMissing);
  }
  // Operators that an accelerator does not support stay on the CPU; the run reports the steps with such operators.
  return kLiteRtHwAcceleratorCpu | (name == "gpu" ? kLiteRtHwAcceleratorGpu : kLiteRtHwAcceleratorNpu);
}

// Parses entries such as `cpu=2,gpu=1`, each for a processor of the plan.
void ByProcessor(const std::string& option, const std::string& text, const plan::Plan& plan,
                 const std::function<void(const std::string&, const std::string&)>& take) {
  for (const std::string& entry : Split(text, ',')) {
    const size_t at = entry.find('=');
    const std::string name = entry.substr(0, at);
    bool known = false;
    std::string names;
    for (size_t i = 0; i < plan.processor_count; ++i) {
      known = known || name == plan.processors[i].name;
      names += (i > 0 ? ", " : "") + std::string(plan.processors[i].name);
    }
    if (at == std::string::npos) throw Wrong(option + " is written as PROCESSOR=VALUE, not `" + entry + "`");
    if (!known) throw Wrong(option + " names the processor `" + name + "`, and the plan has " + names);
    take(name, entry.substr(at + 1));
  }
}

}  // namespace

Options ParseOptions(const std::vector<std::string>& arguments, const plan::Plan& plan) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i], value;
    if (name.rfind("--", 0) != 0) {
      if (!options.model.empty()) throw Wrong("`" + name + "` is one argument too many: the TFLite file is " + options.model);
      options.model = name;
      continue;
    }
    const std::map<std::string, bool*> switches = {
        {"--copies", &options.copies}, {"--together", &options.together}, {"--verbose", &options.verbose}, {"--help", &options.help}};
    if (const auto found = switches.find(name); found != switches.end()) {
      *found->second = true;
      continue;
    }
    const size_t at = name.find('=');
    if (at != std::string::npos) {
      value = name.substr(at + 1);
      name.resize(at);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      throw Wrong(name + " is unknown, or its value is missing");
    }
    if (name == "--input") {
      options.inputs.push_back(value);
    } else if (name == "--out") {
      options.out = value;
    } else if (name == "--repeat") {
      options.repeat = Number(name, value, 1, 1000000);
    } else if (name == "--warmup") {
      options.warmup = Number(name, value, 0, 1000000);
    } else if (name == "--time-limit") {
      options.time_limit = Seconds(name, value);
    } else if (name == "--dispatch-folder") {
      options.dispatch_folder = value;
    } else if (name == "--threads") {
      ByProcessor(name, value, plan, [&](const std::string& who, const std::string& what) { options.threads[who] = Number(name, what, 1, 256); });
    } else if (name == "--cores") {
      ByProcessor(name, value, plan, [&](const std::string& who, const std::string& what) { options.cores[who] = Cores(what); });
    } else if (name == "--accelerator") {
      ByProcessor(name, value, plan, [&](const std::string& who, const std::string& what) { options.accelerators[who] = Accelerator(what); });
    } else {
      throw Wrong(name + " is no option");
    }
  }
  if (options.help) return options;
  if (options.model.empty()) throw Wrong("the TFLite file is missing");
  if (!options.inputs.empty() && options.inputs.size() != plan.input_count) {
    throw Wrong("the model reads " + std::to_string(plan.input_count) + " tensors, and --input names " + std::to_string(options.inputs.size()) + " files");
  }
  return options;
}

std::string Usage(const plan::Plan& plan) {
  std::string processors;
  for (size_t i = 0; i < plan.processor_count; ++i) processors += (i > 0 ? ", " : "") + std::string(plan.processors[i].name);
  return std::string("usage: runner MODEL.tflite [options]\n\nRuns the branches of ") + plan.model + ", planned for " + plan.device +
         ", side by side.\nThe processors of the plan are " + processors +
         ".\n\n"
         "  --input FILE.npy            input, channels first; once for each of several; ones otherwise\n"
         "  --out FOLDER                write times.json, trace.json, record.jsonl and output_N.npy there\n"
         "  --repeat N                  measured inferences (20)\n"
         "  --warmup N                  inferences before them (3)\n"
         "  --threads PROCESSOR=N,...   threads of each processor's work (1)\n"
         "  --cores PROCESSOR=A-B+C,... cores that a processor's threads are pinned to\n"
         "  --accelerator PROCESSOR=cpu|gpu|npu,...  what LiteRT runs it on (cpu)\n"
         "  --dispatch-folder FOLDER    where LiteRT's dispatch library of an npu is\n"
         "  --time-limit SECONDS        end if an inference takes longer (600)\n"
         "  --copies                    copy in and out of buffers of LiteRT's own\n"
         "  --together                  branches of a segment wait until all of them have begun; for tests, times mean nothing\n"
         "  --verbose                   let LiteRT log\n";
}

}  // namespace runner
