/* Says of some readings whether the room is occupied, by a kernel SVM. Put those of your sensors in their place. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include "model.h"

/* In the order of model_features, as they were learned: scaling is inside. */
static const float readings[][MODEL_FEATURES] = {{900.0f, 100.0f}, {900.0f, 950.0f}, {100.0f, 100.0f}, {100.0f, 900.0f}};

int main(void)
{
    unsigned int i;

    for (i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        printk("light %d, sound %d: %s\n", (int)readings[i][0], (int)readings[i][1], model_labels[model_predict(readings[i])]);
        k_msleep(100);
    }
    return 0;
}
