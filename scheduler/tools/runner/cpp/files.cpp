#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "sha256.h"

namespace runner {
namespace {

constexpr size_t kMaxNpy = size_t{1} << 32;

std::string Reason() { return std::strerror(errno); }

// Closes a descriptor at the end of its scope.
struct Descriptor {
  explicit Descriptor(int number) : number(number) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

// The value of a key in a .npy header, up to the comma or bracket that ends it.
std::string HeaderValue(const std::string& header, const std::string& key, const std::string& path) {
  const size_t at = header.find("'" + key + "'");
  const size_t colon = at == std::string::npos ? at : header.find(':', at);
  if (colon == std::string::npos) throw Error(path + " is no .npy file: its header has no `" + key + "`");
  const size_t start = header.find_first_not_of(' ', colon + 1);
  if (start == std::string::npos) throw Error(path + " is no .npy file: its header ends behind `" + key + "`");
  const size_t end = header[start] == '(' ? header.find(')', start) + 1 : header.find_first_of(",}", start);
  if (end == std::string::npos || end <= start) throw Error(path + " is no .npy file: its header is cut off");
  return header.substr(start, end - start);
}

std::vector<int64_t> Shape(const std::string& text, const std::string& path) {
  std::vector<int64_t> shape;
  int64_t number = -1;
  for (char c : text) {
    if (c >= '0' && c <= '9') {
      number = (number < 0 ? 0 : number) * 10 + (c - '0');
      if (number > (int64_t{1} << 32)) throw Error(path + " has an axis that is too long");
    } else if (number >= 0) {
      shape.push_back(number);
      number = -1;
    }
  }
  return shape;
}

}  // namespace

Mapping::Mapping(const std::string& path) : path_(path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found;
  if (file.number < 0 || fstat(file.number, &found) != 0) throw Error("cannot read " + path + ": " + Reason());
  if (!S_ISREG(found.st_mode) || found.st_size <= 0) throw Error(path + " is no file with something in it");
  size_ = static_cast<size_t>(found.st_size);
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.number, 0);
  if (memory == MAP_FAILED) throw Error("cannot map " + path + ": " + Reason());
  data_ = static_cast<uint8_t*>(memory);
}

Mapping::~Mapping() { munmap(data_, size_); }

void Mapping::Apply(const plan::Patch* patches, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (size_ < 4 || patches[i].at > size_ - 4) throw Error("the plan changes bytes that " + path_ + " does not have");
    for (int byte = 0; byte < 4; ++byte) data_[patches[i].at + byte] = static_cast<uint8_t>(patches[i].value >> (8 * byte));
  }
}

void CheckBelongs(const Mapping& file, const std::string& path, const plan::Plan& plan) {
  if (plan.format != plan::kFormat) {
    throw Error("plan.h was written for another version of these sources; write both again with `stretch export --as cpp`");
  }
  if (file.size() != plan.bytes || Sha256(file.data(), file.size()) != plan.sha256) {
    throw Error(path + " is not the file that this runner was built for (" + plan.model + " for " + plan.device +
                "), or it is damaged: its SHA-256 differs from the one in plan.h");
  }
}

Array ReadNpy(const std::string& path) {
  const Mapping file(path);
  const uint8_t* data = file.data();
  if (file.size() < 12 || std::memcmp(data, "\x93NUMPY", 6) != 0 || data[6] < 1 || data[6] > 3) throw Error(path + " is no .npy file");
  const size_t start = data[6] == 1 ? 10 : 12;
  size_t length = size_t{data[8]} | size_t{data[9]} << 8;
  if (data[6] > 1) length |= size_t{data[10]} << 16 | size_t{data[11]} << 24;
  if (length > file.size() - start) throw Error(path + " is cut off");
  const std::string header(reinterpret_cast<const char*>(data + start), length);
  const std::string type = HeaderValue(header, "descr", path);
  if (type != "'<f4'") throw Error(path + " holds elements of type " + type + ", and float32 is expected");
  if (HeaderValue(header, "fortran_order", path) != "False") throw Error(path + " is in Fortran order; save np.ascontiguousarray of it");
  Array array;
  array.shape = Shape(HeaderValue(header, "shape", path), path);
  size_t count = 1;
  for (int64_t axis : array.shape) {
    if (axis == 0 || count > kMaxNpy / static_cast<size_t>(axis)) throw Error(path + " has no element, or too many");
    count *= static_cast<size_t>(axis);
  }
  if (file.size() - start - length != count * sizeof(float)) throw Error(path + " does not have as many elements as its shape says");
  array.data.resize(count);
  std::memcpy(array.data.data(), data + start + length, count * sizeof(float));
  return array;
}

std::string NpyBytes(const std::vector<int64_t>& shape, const float* data, size_t count) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (int64_t axis : shape) text += std::to_string(axis) + ", ";
  text += "), }";
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(text.size() & 255);
  bytes += static_cast<char>(text.size() >> 8);
  bytes += text;
  bytes.append(reinterpret_cast<const char*>(data), count * sizeof(float));
  return bytes;
}

void WriteFile(const std::string& path, const std::string& content) {
  const std::string partial = path + ".partial";
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr) throw Error("cannot write " + path + ": " + Reason());
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(partial.c_str(), path.c_str()) != 0) {
    const std::string reason = Reason();
    std::remove(partial.c_str());
    throw Error("cannot write " + path + ": " + reason);
  }
}

void MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return;
  struct stat found;
  if (errno != EEXIST || stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    throw Error("cannot make the folder " + path + ": " + Reason());
  }
}

}  // namespace runner
