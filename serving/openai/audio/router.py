"""The operations of models that make text of sound."""

from jaxllm.serving.http.operation import Operation
from jaxllm.serving.openai.audio.routes import create_transcription, create_translation
from jaxllm.serving.openai.protocol import audio

OPERATIONS = (
    Operation(
        path="/v1/audio/transcriptions",
        methods=("POST",),
        handler=create_transcription,
        tag="OpenAI",
        form=audio.TranscriptionRequest,
        response=audio.Transcription,
        stream=audio.TranscriptEvent,
        parts=(audio.VerboseTranscription, audio.TranscriptDelta, audio.TranscriptDone),
        upload=True,
        runner="transcribe",
    ),
    Operation(
        path="/v1/audio/translations",
        methods=("POST",),
        handler=create_translation,
        tag="OpenAI",
        form=audio.TranslationRequest,
        response=audio.Transcription,
        stream=audio.TranscriptEvent,
        parts=(audio.VerboseTranscription, audio.TranscriptDelta, audio.TranscriptDone),
        upload=True,
        runner="transcribe",
    ),
)
