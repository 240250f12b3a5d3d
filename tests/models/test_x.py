import pytest
@pytest.mark.parametrize("family", ["llama","mistral","qwen2","qwen3"])
@pytest.mark.parametrize("rope", ["default","linear","llama3","yarn"])
def test_a(tiny_checkpoint, family, rope):
    from glimpse import models
    f=tiny_checkpoint(family, rope=rope, has_tokenizer=True)
    files=models.resolve(str(f))
    print(models.load_config(files))
    k=models.load_tokenizer(files)
    print(k.encode("héy"), k.decode(k.encode("héy")), k.chat([{"role":"user","content":"x"}]), k.vocab_size)
    print(list(f.iterdir()), models.load_generation_defaults(files))
