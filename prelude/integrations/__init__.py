"""Prelude under the interfaces of other libraries, in the same process. One module a library; nothing in the package
imports a module of this folder, and each imports its library when it is imported itself.

    prelude.integrations.langchain               decision model, embeddings, reranking compressor
    prelude.integrations.pydantic_ai             decision model for Agent(output_type=...)
    prelude.integrations.dspy                    decision requests for dspy.configure(lm=...)
    prelude.integrations.transports              httpx2 transports for typesafe-sdk and openai
    prelude.integrations.lm_eval                 --model prelude
    prelude.integrations.sentence_transformers   the shapes of SentenceTransformer and CrossEncoder
    prelude.integrations.opentelemetry           OpenInference spans of decisions

docs/CLIENTS.md shows each in use; spark and daft are in docs/FLEET.md.
"""
