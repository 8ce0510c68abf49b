/* What detect.c calls of LiteRT's C API, as its headers (litert/c of LiteRT 2.1) declare it. The
 * wheel ai-edge-litert has the library libLiteRt.so and no headers; against an SDK that has them,
 * include those instead. */
#ifndef BRIDGE_EXAMPLES_LITERT_H_
#define BRIDGE_EXAMPLES_LITERT_H_

#include <stddef.h>

typedef int Status; /* 0 is success */
typedef size_t Index;
typedef struct LiteRtEnvironmentT* Environment;
typedef struct LiteRtModelT* Model;
typedef struct LiteRtOptionsT* Options;
typedef struct LiteRtCompiledModelT* Compiled;
typedef struct LiteRtSignatureT* Signature;
typedef struct LiteRtTensorT* Tensor;
typedef struct LiteRtTensorBufferT* Buffer;
typedef struct LiteRtTensorBufferRequirementsT* Requirements;
typedef struct { long opaque[32]; } RankedType; /* larger than LiteRtRankedTensorType */

enum { kCpu = 1, kLockRead = 0, kLockWrite = 1 };

Status LiteRtCreateEnvironment(int options, const void* values, Environment* environment);
Status LiteRtCreateModelFromFile(const char* path, Model* model);
Status LiteRtCreateOptions(Options* options);
Status LiteRtSetOptionsHardwareAccelerators(Options options, int accelerators);
Status LiteRtCreateCompiledModel(Environment, Model, Options, Compiled* compiled);

Status LiteRtGetModelSignature(Model model, Index signature, Signature* result);
Status LiteRtGetNumSignatureInputs(Signature signature, Index* count);
Status LiteRtGetNumSignatureOutputs(Signature signature, Index* count);
Status LiteRtGetSignatureInputName(Signature signature, Index index, const char** name);
Status LiteRtGetSignatureOutputName(Signature signature, Index index, const char** name);
Status LiteRtGetSignatureInputTensorByIndex(Signature signature, Index index, Tensor* tensor);
Status LiteRtGetSignatureOutputTensorByIndex(Signature signature, Index index, Tensor* tensor);
Status LiteRtGetRankedTensorType(Tensor tensor, RankedType* type);

Status LiteRtGetCompiledModelInputBufferRequirements(Compiled, Index signature, Index input,
                                                     Requirements* requirements);
Status LiteRtGetCompiledModelOutputBufferRequirements(Compiled, Index signature, Index output,
                                                      Requirements* requirements);
Status LiteRtCreateManagedTensorBufferFromRequirements(Environment, const RankedType*,
                                                       Requirements, Buffer* buffer);
Status LiteRtGetTensorBufferPackedSize(Buffer buffer, size_t* bytes);
Status LiteRtLockTensorBuffer(Buffer buffer, void** host, int mode);
Status LiteRtUnlockTensorBuffer(Buffer buffer);
Status LiteRtRunCompiledModel(Compiled, Index signature, size_t inputs, Buffer* input,
                              size_t outputs, Buffer* output);

void LiteRtDestroyTensorBuffer(Buffer buffer);
void LiteRtDestroyCompiledModel(Compiled compiled);
void LiteRtDestroyOptions(Options options);
void LiteRtDestroyModel(Model model);
void LiteRtDestroyEnvironment(Environment environment);

#endif
