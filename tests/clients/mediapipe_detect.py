"""What MediaPipe Tasks finds: python mediapipe_detect.py MODEL THRESHOLD PHOTO...

Runs with the interpreter of `make setup-clients`. Prints a JSON object for each photo, or one that
says why the model was refused.
"""

import json
import sys

import mediapipe
from mediapipe.tasks.python import BaseOptions, vision


def main() -> None:
    model, threshold, *photos = sys.argv[1:]
    options = vision.ObjectDetectorOptions(
        base_options=BaseOptions(model_asset_path=model), score_threshold=float(threshold)
    )
    try:
        detector = vision.ObjectDetector.create_from_options(options)
    except Exception as error:
        _tell({"refused": str(error)})
        return
    with detector:
        for photo in photos:
            found = detector.detect(mediapipe.Image.create_from_file(photo))
            _tell({"photo": photo, "detections": [_row(d) for d in found.detections]})


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")


def _row(detection: vision.ObjectDetectorResult) -> dict[str, object]:
    box, category = detection.bounding_box, detection.categories[0]
    corners = [box.origin_x, box.origin_y, box.origin_x + box.width, box.origin_y + box.height]
    return {"box": corners, "label": category.category_name, "score": category.score}


if __name__ == "__main__":
    main()
