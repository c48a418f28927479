// Says once a second whether the room is occupied, by a kernel SVM of two readings: a light sensor at A0, a microphone at A1.
#include "model.h"

void setup() {
  Serial.begin(115200);
}

void loop() {
  // In the order of model_features, as they were learned: scaling is inside.
  const float row[MODEL_FEATURES] = {(float)analogRead(A0), (float)analogRead(A1)};
  Serial.println(model_labels[model_predict(row)]);
  delay(1000);
}
