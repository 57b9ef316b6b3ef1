// The functions of LiteRT's C API that the runner calls, and no others.
//
// The packages with LiteRT's library (the Python package `ai-edge-litert`, the Android archive) contain no headers,
// so the functions are declared here as in litert/c/*.h of LiteRT 2. The library exports these names under the
// version VERS_1.0. Linking the runner checks that they exist; names and shapes that the runner reads back from each
// signature check their meaning.
#ifndef NN_STRETCH_RUNNER_LITERT_API_H_
#define NN_STRETCH_RUNNER_LITERT_API_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// Handles of objects that LiteRT owns.
typedef struct LiteRtEnvironmentT* LiteRtEnvironment;
typedef struct LiteRtModelT* LiteRtModel;
typedef struct LiteRtSignatureT* LiteRtSignature;
typedef struct LiteRtOptionsT* LiteRtOptions;
typedef struct LiteRtOpaqueOptionsT* LiteRtOpaqueOptions;
typedef struct LiteRtCompiledModelT* LiteRtCompiledModel;
typedef struct LiteRtTensorBufferT* LiteRtTensorBuffer;
typedef struct LiteRtTensorBufferRequirementsT* LiteRtTensorBufferRequirements;

typedef int LiteRtStatus;  // 0: success
typedef size_t LiteRtParamIndex;

// Bits of a set of accelerators.
enum { kLiteRtHwAcceleratorCpu = 1, kLiteRtHwAcceleratorGpu = 2, kLiteRtHwAcceleratorNpu = 4 };
// Types of elements, of buffers, and of locks on them.
enum { kLiteRtElementTypeFloat32 = 1 };
enum { kLiteRtTensorBufferTypeHostMemory = 1 };
enum { kLiteRtTensorBufferLockModeRead = 0, kLiteRtTensorBufferLockModeWrite = 1 };
// Options of an environment, and levels of its log.
enum { kLiteRtEnvOptionTagDispatchLibraryDir = 1, kLiteRtEnvOptionTagRuntimeLibraryDir = 22, kLiteRtEnvOptionTagAutoRegisterAccelerators = 24, kLiteRtEnvOptionTagMinLoggerSeverity = 25 };
enum { kLiteRtLogSeverityInfo = 1, kLiteRtLogSeverityError = 3 };
enum { kLiteRtAnyTypeInt = 2, kLiteRtAnyTypeString = 8 };

typedef struct {
  int type;
  union {
    bool bool_value;
    int64_t int_value;
    double real_value;
    const char* str_value;
    const void* ptr_value;
  };
} LiteRtAny;

typedef struct {
  int tag;
  LiteRtAny value;
} LiteRtEnvOption;

typedef struct {
  unsigned int rank : 7;
  unsigned int has_strides : 1;
  int32_t dimensions[8];
  uint32_t strides[8];
} LiteRtLayout;

typedef struct {
  int element_type;
  LiteRtLayout layout;
} LiteRtRankedTensorType;

static_assert(sizeof(void*) != 8 || (sizeof(LiteRtEnvOption) == 24 && sizeof(LiteRtLayout) == 68 && sizeof(LiteRtRankedTensorType) == 72),
              "LiteRT's structures have these sizes");

LiteRtStatus LiteRtCreateEnvironment(int count, const LiteRtEnvOption* options, LiteRtEnvironment* environment);
void LiteRtDestroyEnvironment(LiteRtEnvironment environment);

// The memory must stay valid as long as the model exists.
LiteRtStatus LiteRtCreateModelFromBuffer(LiteRtEnvironment environment, const void* data, size_t bytes, LiteRtModel* model);
void LiteRtDestroyModel(LiteRtModel model);
LiteRtStatus LiteRtGetNumModelSignatures(LiteRtModel model, LiteRtParamIndex* count);
LiteRtStatus LiteRtGetModelSignature(LiteRtModel model, LiteRtParamIndex index, LiteRtSignature* signature);
LiteRtStatus LiteRtGetSignatureKey(LiteRtSignature signature, const char** key);
LiteRtStatus LiteRtGetNumSignatureInputs(LiteRtSignature signature, LiteRtParamIndex* count);
LiteRtStatus LiteRtGetSignatureInputName(LiteRtSignature signature, LiteRtParamIndex index, const char** name);
LiteRtStatus LiteRtGetNumSignatureOutputs(LiteRtSignature signature, LiteRtParamIndex* count);
LiteRtStatus LiteRtGetSignatureOutputName(LiteRtSignature signature, LiteRtParamIndex index, const char** name);

LiteRtStatus LiteRtCreateOptions(LiteRtOptions* options);
void LiteRtDestroyOptions(LiteRtOptions options);
LiteRtStatus LiteRtSetOptionsHardwareAccelerators(LiteRtOptions options, int accelerators);
// `options` take ownership of `opaque`, which owns `data` and releases it with `destroy`.
LiteRtStatus LiteRtCreateOpaqueOptions(const char* identifier, void* data, void (*destroy)(void*), LiteRtOpaqueOptions* options);
LiteRtStatus LiteRtAddOpaqueOptions(LiteRtOptions options, LiteRtOpaqueOptions opaque);

LiteRtStatus LiteRtCreateCompiledModel(LiteRtEnvironment environment, LiteRtModel model, LiteRtOptions options, LiteRtCompiledModel* compiled);
void LiteRtDestroyCompiledModel(LiteRtCompiledModel compiled);
// Whether no operator stays on the CPU; the older function, without NonCpu, counts XNNPACK as an accelerator.
LiteRtStatus LiteRtCompiledModelIsNonCpuFullyAccelerated(LiteRtCompiledModel compiled, bool* fully);
LiteRtStatus LiteRtGetCompiledModelInputTensorLayout(LiteRtCompiledModel compiled, LiteRtParamIndex signature, LiteRtParamIndex input, LiteRtLayout* layout);
LiteRtStatus LiteRtGetCompiledModelOutputTensorLayouts(LiteRtCompiledModel compiled, LiteRtParamIndex signature, size_t count, LiteRtLayout* layouts, bool update);
LiteRtStatus LiteRtGetCompiledModelInputBufferRequirements(LiteRtCompiledModel compiled, LiteRtParamIndex signature, LiteRtParamIndex input, LiteRtTensorBufferRequirements* requirements);
LiteRtStatus LiteRtGetCompiledModelOutputBufferRequirements(LiteRtCompiledModel compiled, LiteRtParamIndex signature, LiteRtParamIndex output, LiteRtTensorBufferRequirements* requirements);
LiteRtStatus LiteRtRunCompiledModel(LiteRtCompiledModel compiled, LiteRtParamIndex signature, size_t input_count, LiteRtTensorBuffer* inputs, size_t output_count, LiteRtTensorBuffer* outputs);

LiteRtStatus LiteRtGetNumTensorBufferRequirementsSupportedBufferTypes(LiteRtTensorBufferRequirements requirements, int* count);
LiteRtStatus LiteRtGetTensorBufferRequirementsSupportedTensorBufferType(LiteRtTensorBufferRequirements requirements, int index, int* type);

// Host memory must be aligned to 64 bytes.
LiteRtStatus LiteRtCreateTensorBufferFromHostMemory(const LiteRtRankedTensorType* type, void* memory, size_t bytes, void (*destroy)(void*), LiteRtTensorBuffer* buffer);
LiteRtStatus LiteRtCreateManagedTensorBufferFromRequirements(LiteRtEnvironment environment, const LiteRtRankedTensorType* type, LiteRtTensorBufferRequirements requirements, LiteRtTensorBuffer* buffer);
LiteRtStatus LiteRtLockTensorBuffer(LiteRtTensorBuffer buffer, void** memory, int mode);
LiteRtStatus LiteRtUnlockTensorBuffer(LiteRtTensorBuffer buffer);
void LiteRtDestroyTensorBuffer(LiteRtTensorBuffer buffer);

}  // extern "C"

#endif  // NN_STRETCH_RUNNER_LITERT_API_H_
