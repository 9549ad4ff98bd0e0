"""RecommenderNet in Keras, by model.fit: python recommender_keras.py FOLDER [stock] records it.

Keras's stock Adam squares each duplicate by itself; that of islices sums them first, as other frameworks do.
"""

from __future__ import annotations

import sys

import keras
import recommender as data

from islices.backends.keras import Adam, Recorder


class RecommenderNet(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        l2 = keras.regularizers.l2(data.L2)
        self.user = keras.layers.Embedding(data.USERS, data.WIDTH, embeddings_regularizer=l2, name="user")
        self.user_bias = keras.layers.Embedding(data.USERS, 1, name="user_bias")
        self.item = keras.layers.Embedding(data.ITEMS, data.WIDTH, embeddings_regularizer=l2, name="item")
        self.item_bias = keras.layers.Embedding(data.ITEMS, 1, name="item_bias")

    def call(self, pairs):
        users, items = pairs[:, 0], pairs[:, 1]
        score = keras.ops.sum(self.user(users) * self.item(items), axis=1, keepdims=True)
        return keras.ops.sigmoid(score + self.user_bias(users) + self.item_bias(items))


def main(folder: str, fault: str = "") -> None:
    pairs, ratings = data.batches()
    model = RecommenderNet()
    model(pairs[:1])
    for name, x in data.start().items():
        getattr(model, name).set_weights([x])
    model.compile(
        optimizer=(keras.optimizers.Adam if fault == "stock" else Adam)(1e-3), loss=keras.losses.BinaryCrossentropy()
    )
    recorder = Recorder(folder, metadata={"batch_size": str(data.BATCH)})
    model.fit(pairs, ratings, batch_size=data.BATCH, shuffle=False, callbacks=[recorder], verbose=0)


main(*sys.argv[1:])
