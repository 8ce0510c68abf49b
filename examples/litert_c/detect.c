/* Runs a detector through LiteRT's C API: detect MODEL IMAGE
 *
 * MODEL is what `bridge run --to tflite --outputs detections` (or `--nms postprocess`) wrote, IMAGE
 * the bytes of its one input, uint8 [1, H, W, 3] or float32, in a file of that size. Prints a line
 * for each detection: class, score and the box (y1, x1, y2, x2). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "litert.h"

enum { kMostOutputs = 8 };

static void check(Status status, const char* what) {
  if (status == 0) return;
  fprintf(stderr, "%s fails with status %d\n", what, status);
  exit(1);
}

static void* locked(Buffer buffer, int mode) {
  void* host = NULL;
  check(LiteRtLockTensorBuffer(buffer, &host, mode), "locking a buffer");
  return host;
}

static void read_image(const char* path, Buffer buffer) {
  size_t bytes = 0;
  check(LiteRtGetTensorBufferPackedSize(buffer, &bytes), "the size of the input");
  FILE* file = fopen(path, "rb");
  if (file == NULL || fread(locked(buffer, kLockWrite), 1, bytes, file) != bytes) {
    fprintf(stderr, "%s does not hold the %zu bytes of the input\n", path, bytes);
    exit(1);
  }
  fclose(file);
  check(LiteRtUnlockTensorBuffer(buffer), "unlocking the input");
}

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "detect MODEL IMAGE\n"), 2;
  Environment environment;
  Model model;
  Options options;
  Compiled compiled;
  Signature signature;
  check(LiteRtCreateEnvironment(0, NULL, &environment), "LiteRT");
  check(LiteRtCreateModelFromFile(arguments[1], &model), "reading the model");
  check(LiteRtCreateOptions(&options), "options");
  check(LiteRtSetOptionsHardwareAccelerators(options, kCpu), "choosing the CPU");
  check(LiteRtCreateCompiledModel(environment, model, options, &compiled), "compiling");
  check(LiteRtGetModelSignature(model, 0, &signature), "the signature");

  Tensor tensor;
  RankedType type;
  Requirements needs;
  Buffer image, buffers[kMostOutputs];
  Index outputs = 0;
  check(LiteRtGetSignatureInputTensorByIndex(signature, 0, &tensor), "the input");
  check(LiteRtGetRankedTensorType(tensor, &type), "the type of the input");
  check(LiteRtGetCompiledModelInputBufferRequirements(compiled, 0, 0, &needs), "the input's needs");
  check(LiteRtCreateManagedTensorBufferFromRequirements(environment, &type, needs, &image), "input");
  read_image(arguments[2], image);
  check(LiteRtGetNumSignatureOutputs(signature, &outputs), "the outputs");
  if (outputs != 4) return fprintf(stderr, "%zu outputs, not four\n", outputs), 1;
  const float* found[kMostOutputs] = {NULL}; /* boxes, classes, scores, count: by name */
  static const char* const kNames[] = {"detection_boxes", "detection_classes", "detection_scores",
                                       "num_detections"};
  for (Index i = 0; i < outputs; ++i) {
    check(LiteRtGetSignatureOutputTensorByIndex(signature, i, &tensor), "an output");
    check(LiteRtGetRankedTensorType(tensor, &type), "the type of an output");
    check(LiteRtGetCompiledModelOutputBufferRequirements(compiled, 0, i, &needs), "its needs");
    check(LiteRtCreateManagedTensorBufferFromRequirements(environment, &type, needs, &buffers[i]),
          "an output's buffer");
  }
  check(LiteRtRunCompiledModel(compiled, 0, 1, &image, outputs, buffers), "running");
  for (Index i = 0; i < outputs; ++i) {
    const char* name = NULL;
    check(LiteRtGetSignatureOutputName(signature, i, &name), "the name of an output");
    for (int k = 0; k < 4; ++k) {
      if (strcmp(name, kNames[k]) == 0) found[k] = locked(buffers[i], kLockRead);
    }
  }
  for (int row = 0; row < (int)found[3][0]; ++row) {
    const float* box = found[0] + 4 * row;
    printf("%d %.9g %.9g %.9g %.9g %.9g\n", (int)found[1][row], found[2][row], box[0], box[1],
           box[2], box[3]);
  }
  for (Index i = 0; i < outputs; ++i) {
    LiteRtUnlockTensorBuffer(buffers[i]);
    LiteRtDestroyTensorBuffer(buffers[i]);
  }
  LiteRtDestroyTensorBuffer(image);
  LiteRtDestroyCompiledModel(compiled);
  LiteRtDestroyOptions(options);
  LiteRtDestroyModel(model);
  LiteRtDestroyEnvironment(environment);
  return 0;
}
